"""Messages to NumPyClients and back, with real Messages."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient

from clients import bridge
from fed3r_app.core import FeatureMap
from fed3r_app.errors import PermanentError
from strategies.flower_internals import stamp

CONTEXT = Context(1, 7, {"client-id": "clinic-7"}, RecordDict(), {})


def request(**config: Any) -> Any:
    arrays = ArrayRecord({"x": Array(np.arange(3.0))})
    return message_of(RecordDict({"arrays": arrays, "config": ConfigRecord(config)}))


def message_of(content: RecordDict) -> Message:
    message = Message(content, dst_node_id=7, message_type="train.statistics")
    stamp(message, "the request", 1)
    return message


def name_arrays(arrays: Any) -> Any:
    return ArrayRecord({f"a{i}": Array(array) for i, array in enumerate(arrays)})


class Doubler(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return [2 * parameters[0], parameters[0]], 5, {"lr": config["lr"]}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.5, 5, {"correct": 4}


def test_fit_gets_arrays_and_config_and_its_reply_has_names() -> None:
    reply = bridge.fit(Doubler(), request(lr=0.1), name_arrays)
    arrays, metrics = reply.content.array_records["arrays"], reply.content["metrics"]
    assert list(arrays) == ["a0", "a1"]
    assert arrays["a0"].numpy().tolist() == [0.0, 2.0, 4.0]
    assert dict(metrics) == {"num-examples": 5, "lr": 0.1}


def test_evaluate_replies_with_numbers() -> None:
    metrics = bridge.evaluate(Doubler(), request()).content["metrics"]
    assert dict(metrics) == {"num-examples": 5, "loss": 0.5, "correct": 4}


def test_replies_go_back_to_who_asked() -> None:
    reply = bridge.fit(Doubler(), request(lr=1.0), name_arrays)
    assert reply.metadata.reply_to_message_id == "the request"
    assert reply.metadata.src_node_id == 7


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("data-path must exist, got '/x'."), "data-path must exist"),
        (KeyError(), "KeyError()"),
        (MemoryError(), "MemoryError()"),
    ],
)
def test_what_is_raised_becomes_an_error_reply_with_the_sentence(
    error: Any, reason: str
) -> None:
    @bridge.reply_with_errors
    def handler(message: Message, context: Any) -> Message:
        raise error

    reply = handler(request(), CONTEXT)
    assert reply.has_error()
    assert str(reply.error.reason).startswith(reason)
    assert reply.metadata.reply_to_message_id == "the request"


@pytest.mark.parametrize(
    "run_config",
    [
        {"privacy": "secagg"},
        {"privacy": "Secagg "},
        {"privacy": 7, "rounds": -1},
        {"dp-epsilon": 1.0},
        {"dp-epsilon": "2"},
        {"dp-epsilon": math.nan},
        {"dp-mode": "distributed"},
    ],
)
@pytest.mark.parametrize("error", [ValueError, PermanentError, KeyError])
def test_where_privacy_is_asked_for_the_reason_stays_in_the_node_s_log(
    run_config: Any, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @bridge.reply_with_errors
    def handler(message: Message, context: Any) -> Message:
        raise error("/data/melanoma/Doe_John_1970-01-01.png can't be read")

    private = Context(1, 7, {"client-id": "clinic-7"}, RecordDict(), run_config)
    reply = handler(request(), private)
    assert reply.error.reason == "client clinic-7 failed, see this node's log"
    assert "Doe_John" in caplog.text


def test_a_request_without_arrays_is_an_error_reply() -> None:
    @bridge.reply_with_errors
    def handler(message: Message, context: Any) -> Message:
        return bridge.fit(Doubler(), message, name_arrays)

    assert handler(message_of(RecordDict()), CONTEXT).has_error()


@pytest.mark.parametrize(
    ("action", "traced"),
    [
        (lambda: FeatureMap(4)(torch.zeros(1, 3)), False),  # a sentence of ours
        (lambda: torch.zeros(2).reshape(3), True),
        (lambda: 1 / 0, True),
    ],
)
def test_a_traceback_is_logged_where_there_is_no_sentence(
    caplog: pytest.LogCaptureFixture, action: Any, traced: bool
) -> None:
    handler = bridge.reply_with_errors(lambda message, context: action())
    assert handler(request(), CONTEXT).has_error()
    (record,) = caplog.records
    assert bool(record.exc_info) == traced
