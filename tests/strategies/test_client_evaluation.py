"""Evaluations on the clients' own images: sums of counts, and only sane ones."""

import threading
from functools import partial
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode

from strategies import (
    ClientEvaluation,
    ClientRegistry,
    Traffic,
    evaluate_on_clients,
)
from tests.harness.grid import SpyGrid
from tests.harness.replies import fail, reply_with

REQUEST = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})


def evaluate(grid: Any, max_retries: int = 0) -> ClientEvaluation:
    registry = ClientRegistry({str(node): node for node in grid.nodes})
    evaluation = ClientEvaluation(registry.clients, max_retries)
    evaluate_on_clients(grid, registry, evaluation, REQUEST, 1.0, Traffic())
    return evaluation


def right(evaluation: ClientEvaluation) -> tuple[int, int]:
    return evaluation.metrics.correct, evaluation.metrics.total


def counts(n: int, correct: int) -> Any:
    metrics = MetricRecord({"num-examples": n, "correct": correct, "loss": 2.0})
    return partial(reply_with, metrics=metrics)


def test_client_evaluations_are_added_up_not_averaged() -> None:
    nodes = {101: counts(100, 90), 102: counts(1, 0), 103: counts(0, 0)}
    metrics = evaluate(SpyGrid(nodes)).metrics
    assert metrics.accuracy == 90 / 101
    assert (metrics.correct, metrics.total) == (90, 101)


def test_unreadable_evaluations_are_left_out() -> None:
    good = MetricRecord({"num-examples": 4, "correct": 3, "loss": 1.0})
    bad = [
        MetricRecord({"num-examples": 4}),
        MetricRecord({"num-examples": 4, "correct": 5, "loss": 1.0}),
        MetricRecord({"num-examples": 4, "correct": 3, "loss": float("nan")}),
        MetricRecord({"num-examples": [4], "correct": [3], "loss": [1.0]}),
    ]
    made = [partial(reply_with, metrics=metrics) for metrics in (good, *bad)]
    grid = SpyGrid(dict(enumerate([*made, reply_with, fail], start=101)))
    evaluation = evaluate(grid, max_retries=1)
    assert right(evaluation) == (3, 4)
    assert evaluation.evaluated == ["101"]
    assert len(evaluation.missing) == 6
    asked = [node for node, _ in grid.log]
    assert sorted(asked) == [*range(101, 108), 107], "only an error is asked again"


def test_no_evaluation_at_all_counts_nothing() -> None:
    evaluation = evaluate(SpyGrid({101: fail}))
    assert evaluation.metrics.total == 0
    assert evaluation.missing == {"101": "It broke."}


def test_who_fails_once_is_asked_again() -> None:
    tries = iter([fail, counts(4, 3)])
    evaluation = evaluate(SpyGrid({101: lambda m: next(tries)(m)}), max_retries=1)
    assert right(evaluation) == (3, 4)
    assert not evaluation.missing


def test_who_goes_and_comes_back_in_time_is_asked_again() -> None:
    def leave(message: Message) -> Message:
        del grid.nodes[101]
        threading.Timer(0.3, grid.nodes.__setitem__, (101, counts(4, 3))).start()
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Gone."), reply_to=message)

    grid = SpyGrid({101: leave, 102: counts(1, 1)})
    assert right(evaluate(grid)) == (4, 5)


def test_who_is_silent_or_stays_away_is_named() -> None:
    nodes = {101: lambda message: None, 102: counts(1, 1)}
    registry = ClientRegistry({"silent": 101, "good": 102, "gone": 103})
    evaluation = ClientEvaluation(registry.clients, 3)
    grid = SpyGrid(nodes)
    evaluate_on_clients(grid, registry, evaluation, REQUEST, 0.3, Traffic())
    assert evaluation.evaluated == ["good"]
    assert evaluation.missing == {
        "silent": "no reply",
        "gone": "its node is not connected",
    }
    assert len(grid.log) == 2
