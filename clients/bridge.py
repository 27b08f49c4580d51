"""The one place where Flower's Messages meet NumPyClients.

Flower's message strategies send records; a NumPyClient takes and returns lists of
arrays. An error becomes a reply that says what went wrong, unless nothing but protected
sums may leave the node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from logging import ERROR
from typing import cast

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from clients.node import client_name
from fed3r_app.config import asks_for_privacy
from fed3r_app.console import logs
from fed3r_app.errors import PermanentError, RunError
from fed3r_app.wire.validation import read_array

Handler = Callable[[Message, Context], Message]
NameArrays = Callable[[NDArrays], ArrayRecord]


def fit(client: NumPyClient, message: Message, name_arrays: NameArrays) -> Message:
    """Return the reply of ``client.fit``; ``name_arrays`` restores the array names."""
    arrays, n, metrics = client.fit(*_request(message))
    record = _metrics({"num-examples": n, **metrics})
    content = RecordDict({"arrays": name_arrays(arrays), "metrics": record})
    return Message(content, reply_to=message)


def evaluate(client: NumPyClient, message: Message) -> Message:
    """Return the reply of ``client.evaluate``."""
    loss, n, metrics = client.evaluate(*_request(message))
    record = _metrics({"num-examples": n, "loss": loss, **metrics})
    return Message(RecordDict({"metrics": record}), reply_to=message)


def reply_with_errors(handler: Handler) -> Handler:
    """Return the handler, with what it raises turned into an error reply.

    Its code tells errors that will not heal from the others. Where nothing but
    protected sums may leave the node, the reason stays in its log: names of files,
    classes and rows of tables may be in it. No other place decides that.
    """

    @functools.wraps(handler)
    def handle(message: Message, context: Context) -> Message:
        what = message.metadata.message_type
        try:
            return handler(message, context)
        except PermanentError as error:
            _log(what, error, context)
            reason, code = str(error), ErrorCode.MOD_FAILED_PRECONDITION
        except Exception as error:
            if _says_it_all(error):
                _log(what, error, context)
            else:
                log(ERROR, "%s failed", what, exc_info=error)
            reason = str(error) or repr(error)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        if asks_for_privacy(context.run_config):
            reason = f"client {client_name(context)} failed, see this node's log"
        return Message(Error(code=code, reason=reason), reply_to=message)

    return handle


def _log(what: str, error: Exception, context: Context) -> None:
    """Log an error, unless the server of the same process logs what it is told."""
    if asks_for_privacy(context.run_config) or not logs.is_shown():
        log(ERROR, "%s failed: %s", what, error)


def _says_it_all(error: Exception) -> bool:
    """Return whether an error is a sentence of the app's own: no traceback is needed.

    ValueErrors of the libraries are not, nor are a file's that they open.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    is_ours = module.partition(".")[0] in ("fed3r_app", "clients")
    return is_ours and isinstance(error, (ValueError, OSError, RunError))


def read_arrays(record: ArrayRecord) -> NDArrays:
    """Return the arrays of a record, in order."""
    return [read_array(record, name) for name in record]


def _request(message: Message) -> tuple[NDArrays, dict[str, Scalar]]:
    arrays = read_arrays(message.content.array_records["arrays"])
    config = message.content.config_records["config"]
    return arrays, cast(dict[str, Scalar], dict(config.items()))


def _metrics(values: dict[str, Scalar]) -> MetricRecord:
    return MetricRecord(cast(dict[str, MetricRecordValues], values))
