"""Classifiers evaluated on the clients' own images: counts added, never averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.console.progress import Progress
from fed3r_app.core import Metrics
from fed3r_app.wire import (
    ON_TEST_IMAGES,
    RecordError,
    count_bytes,
    read_evaluation,
)
from strategies.absence import Absence
from strategies.messaging import (
    Traffic,
    is_permanent,
    is_unavailable,
    one_line,
    same_request,
)
from strategies.registry import ClientRegistry

EVALUATION = "evaluate.statistics"
# An accuracy is not worth waiting for as long as a client's statistics are: so long
# that a node that is started again is back, which Flower refuses for a minute.
_RETURN_SECONDS = 180.0


class ClientEvaluation:
    """What a classifier gets right on the images of some clients together.

    Parameters
    ----------
    clients : Sequence[str]
        The clients to ask.
    max_retries : int
        How often a client that failed is asked again.

    Attributes
    ----------
    metrics : Metrics
        The sum of the clients' counts.
    missing : dict
        Why a client is not in the sum.
    """

    def __init__(self, clients: Sequence[str], max_retries: int = 0) -> None:
        self.metrics = Metrics(0, 0)
        self.missing = dict.fromkeys(clients, "not asked")
        self._left = dict.fromkeys(clients, max_retries + 1)
        self._clients = tuple(clients)

    @property
    def evaluated(self) -> list[str]:
        """The clients in the sum."""
        return [client for client in self._clients if client not in self.missing]

    @property
    def open(self) -> list[str]:
        """The clients that may yet be asked."""
        return [client for client, left in self._left.items() if left > 0]

    def close(self, client: str, reason: str | None = None) -> None:
        """Do not ask a client any more."""
        self.missing[client] = reason or self.missing[client]
        self._left[client] = 0

    def take(
        self, client: str, reply: Message, check_count: Callable[[int], None]
    ) -> None:
        """Add a reply to the sum, or record why it can't be.

        ``check_count`` raises for more images than the client announced.
        """
        self._left[client] -= 1
        try:
            metrics = _read_evaluation(reply)
            check_count(metrics.total)
            self.metrics += metrics
        except RecordError as error:
            self.missing[client] = one_line(str(error))
            if not reply.has_error() or is_permanent(reply):
                self.close(client)
        else:
            self.close(client)
            del self.missing[client]

    def excuse(self, client: str, reply: Message) -> None:
        """Record that the node of a client is gone, which may be asked once more."""
        self.missing[client] = one_line(reply.error.reason)


def evaluate_on_clients(
    grid: Grid,
    registry: ClientRegistry,
    evaluation: ClientEvaluation,
    request: RecordDict,
    timeout: float,
    traffic: Traffic,
    newcomers: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Evaluate a classifier on clients' own images; ``traffic`` adds up the bytes.

    A client that fails is asked again, and so is one whose node comes back within a few
    minutes; for ``newcomers`` see ``Absence``.
    """
    of_test = bool(request.config_records["config"].get(ON_TEST_IMAGES))
    absence = Absence(registry, newcomers, min(timeout, _RETURN_SECONDS))
    with Progress("clients evaluated") as progress:
        while clients := evaluation.open:
            present = absence.present(grid, clients)
            for client in clients:
                if client not in present and absence.is_over(client):
                    evaluation.close(client)
            nodes = {registry.nodes[client]: client for client in present}
            requests = same_request(nodes, request, EVALUATION, traffic)
            silent = set(present)
            for reply in registry.stream_replies(grid, requests, timeout):
                client = nodes[reply.metadata.src_node_id]
                silent.discard(client)
                if is_unavailable(reply):
                    absence.begin(client)
                    evaluation.excuse(client, reply)
                    continue
                if not reply.has_error():
                    traffic.up += count_bytes(reply.content)
                check = partial(registry.check_count, client, of_test=of_test)
                evaluation.take(client, reply, check)
                done = len(evaluation.evaluated)
                progress(done, done + len(evaluation.missing))
            for client in silent:  # it has had a whole timeout
                evaluation.close(client, "no reply")
    for client, reason in evaluation.missing.items():
        log(WARNING, "Client %s was not evaluated: %s", client, reason)


def _read_evaluation(reply: Message) -> Metrics:
    """Return the counts in a reply."""
    if reply.has_error():
        raise RecordError(reply.error.reason)
    return read_evaluation(reply.content)
