"""Clients that fail, or have next to nothing: left out, reported, never averaged in."""

import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)

from fed3r_app.errors import RunError
from tests.harness.runs import AppRuns, assert_same_model, failing

IID: dict[str, Any] = {"partition": "iid", "clients_per_round": 0, "ridge_lambda": 1.0}
LP: dict[str, Any] = IID | {"finetune": "lp", "rounds": 3, "local_epochs": 3}
NODE_OF_CLIENT_1 = 3  # node 1 is the server


def number_of(message: Message) -> Any:
    return message.content.config_records["config"].get("server-round", 0)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """Return what was said by way of warning so far."""
    caplog.set_level(logging.WARNING, logger="flwr")
    return lambda: [record.getMessage() for record in caplog.records]


def mean_of(exchanges: Any, weighted: Any) -> Any:
    """Return the mean of the replies, by their number of images or plainly."""
    weights = [each.num_examples if weighted else 1 for each in exchanges]
    arrays = [each.received()["classifier.weight"] for each in exchanges]
    return np.average(arrays, axis=0, weights=weights)


@pytest.mark.parametrize("optimizer", ["fedavg", "scaffold"])
def test_a_loss_that_is_not_finite_is_reported_and_not_averaged_in(
    run: AppRuns, warnings: Any, optimizer: Any
) -> None:
    def diverge(message: Message, context: Context) -> None:
        if number_of(message) == 2 and context.node_config["partition-id"] == 1:
            config = message.content.config_records["config"]
            message.content["config"] = ConfigRecord(dict(config) | {"lr": 3e38})

    outcome = run(3, before=diverge, optimizer=optimizer, **LP)
    (sentence,) = [line for line in warnings() if "Client 1 failed" in line]
    assert "loss became" in sentence and "with lr = 3e+38. Lower lr." in sentence
    assert [line["clients_trained"] for line in outcome.tuning] == [3, 2, 3]
    good = [each for each in outcome.round(2) if each.reply is not None]
    assert {each.client for each in good} == {0, 2}
    after = outcome.round(3)[0].sent()
    assert np.isfinite(after["classifier.weight"]).all()
    expected = mean_of(good, weighted=optimizer == "fedavg")
    assert np.abs(after["classifier.weight"] - expected).max() <= 1e-6


def without(record: str) -> Any:
    """Make what takes a record out of a reply."""
    return lambda records: records.pop(record)


def with_array(array: Any, name: str = "classifier.weight", of: str = "arrays") -> Any:
    """Make what puts an array in the place of those of a reply."""

    def damage(records: Any) -> None:
        records[of] = ArrayRecord({name: array})

    return damage


NO_ARRAY = Array("float32", (10, 64), "numpy.ndarray", b"no array")
NOT_FINITE = Array(np.array([np.nan] + [0.0] * 639, dtype=np.float32).reshape(10, 64))
SMALLER, WORDS = Array(np.zeros((2, 2))), Array(np.full((10, 64), "word"))


def with_metrics(**changes: Any) -> Any:
    """Make what changes some metrics of a reply, or takes them out."""

    def damage(records: Any) -> None:
        metrics = dict(records["metrics"])
        for key, value in changes.items():
            metrics[key.replace("_", "-")] = value
        kept = {key: value for key, value in metrics.items() if value is not None}
        records["metrics"] = MetricRecord(kept)

    return damage


NOT_SENT = "Client 1 failed: its arrays are not those it was sent"
BAD_VARIATES = [without("control"), with_array(SMALLER, of="control")]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (with_array(NOT_FINITE), "1 failed: its classifier.weight is not finite"),
        (with_array(SMALLER), NOT_SENT),
        (with_array(Array(np.zeros((10, 64))), "other"), NOT_SENT),
        (without("arrays"), "Client 1 failed: its reply has no arrays or no metrics"),
        (with_array(NO_ARRAY), "1 failed: Array 'classifier.weight' can't be read"),
        (with_array(WORDS), NOT_SENT),
        (with_metrics(num_examples=None), "its num-examples must be a whole number"),
        (with_metrics(num_examples=-50), "its num-examples must be a whole number"),
        (with_metrics(num_examples=[3]), "its num-examples must be a whole number"),
        (with_metrics(train_loss=None), "its train-loss must be a finite number"),
        (with_metrics(train_loss=math.nan), "its train-loss must be a finite number"),
        *((damage, NOT_SENT) for damage in BAD_VARIATES),
    ],
)
def test_a_bad_reply_is_reported_and_not_averaged_in(
    run: AppRuns, warnings: Any, damage: Any, sentence: str
) -> None:
    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        number = request.config_records["config"].get("server-round")
        if number == 1 and context.node_config["partition-id"] == 1:
            damage(reply)

    optimizer = "scaffold" if damage in BAD_VARIATES else "fedavg"
    outcome = run(3, tamper=tamper, optimizer=optimizer, **LP)
    assert any(sentence in said for said in warnings())
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 3, 3]


def test_metrics_that_nobody_else_has_are_passed_over(run: AppRuns) -> None:
    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        if "train-loss" in reply.get("metrics", {}):
            with_metrics(**{f"of_{context.node_config['partition-id']}": 1})(reply)

    outcome = run(3, tamper=tamper, **LP)
    assert [line["clients_trained"] for line in outcome.tuning] == [3, 3, 3]


def test_a_silent_client_is_reported_and_left_out(run: AppRuns, warnings: Any) -> None:
    def gone(message: Message) -> Any:
        first = number_of(message) == 1
        return first and message.metadata.dst_node_id == NODE_OF_CLIENT_1

    outcome = run(3, gone=gone, **LP)
    assert "Client 1 failed: its node is not connected" in warnings()
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 3, 3]
    with pytest.raises(RunError, match=r"All 3 clients of round 2 .* not connected"):
        run(3, gone=lambda m: number_of(m) == 2, run_name="all", **LP)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "scaffold"])
def test_a_round_without_a_valid_reply_stops_and_keeps_the_last_good_model(
    run: AppRuns, optimizer: Any
) -> None:
    def break_all(message: Message, context: Context) -> None:
        if number_of(message) == 3:
            raise OSError("The disk is gone.")

    settings: dict[str, Any] = LP | {"rounds": 2, "optimizer": optimizer}
    good = run(3, run_name="good", **settings)
    sentence = r"All 3 clients of round 3 failed; one said: The disk is gone\."
    with pytest.raises(RunError, match=sentence):
        run(3, before=break_all, **settings | {"rounds": 5})
    assert_same_model(run.last.model, good.model)
    assert [line["round"] for line in run.last.tuning] == [2, 3]
    assert not (run.last.directory / "summary.json").exists()


def test_a_first_round_without_a_valid_reply_keeps_the_start(run: AppRuns) -> None:
    start = run(3, run_name="start", **LP | {"finetune": "none"})
    with pytest.raises(RunError, match="All 3 clients of round 1 failed"):
        run(3, before=failing(range(3), 1, "train"), **LP)
    assert np.array_equal(run.last.model.W, start.model.W.float().double())


@pytest.mark.parametrize("batch_size", [1, pytest.param(2, marks=pytest.mark.slow), 50])
def test_batches_of_one_image_train_with_batch_norm(
    run: AppRuns, few_images: Any, grey_folder: Any, batch_size: Any
) -> None:
    # Clients with 1, 2 and 5 images, whose last feature map is 1 x 1.
    images = few_images | {"data_path": grey_folder(a=1, b=2, c=5)}
    full: dict[str, Any] = {"method": "none", "finetune": "full", "lr": 1e-3}
    settings = images | full | {"batch_size": batch_size}
    outcome = run(3, batch_norm="train", **settings)
    assert [line["clients_trained"] for line in outcome.tuning] == [3, 3]
    assert sorted({each.num_examples for each in outcome.trained}) == [1, 2, 5]
    for each in outcome.trained:
        moved = each.received()["classifier.weight"] - each.sent()["classifier.weight"]
        assert np.abs(moved).max() > 0


@pytest.mark.parametrize("optimizer", ["fedavg", "scaffold"])
def test_a_client_without_images_is_left_out(
    run: AppRuns, grey_folder: Any, optimizer: Any
) -> None:
    settings = LP | {"dataset": "imagefolder", "data_path": grey_folder(a=2, b=2)}
    outcome = run(6, optimizer=optimizer, **settings)
    assert [line["clients_trained"] for line in outcome.tuning] == [4] * 3
    good = [each for each in outcome.round(1) if each.num_examples]
    after = outcome.round(2)[0].sent()
    expected = mean_of(good, weighted=optimizer == "fedavg")
    assert np.abs(after["classifier.weight"] - expected).max() <= 1e-6


def test_the_costs_are_of_those_who_trained(run: AppRuns) -> None:
    outcome = run(3, before=failing([1], 1, "train"), **LP | {"rounds": 1})
    first, last = outcome.metrics[-2:]
    assert last["paper_upload_bytes"] - first["paper_upload_bytes"] == 4 * 640 * 2
