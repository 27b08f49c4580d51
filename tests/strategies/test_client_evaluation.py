"""Evaluations on the clients' own images: sums of counts, and only sane ones."""

from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies import ClientRegistry, Traffic, evaluate_on_clients
from tests.harness.grid import SpyGrid
from tests.harness.replies import fail, reply_with

REQUEST = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})


def evaluate(grid: Any) -> Any:
    registry = ClientRegistry({str(node): node for node in grid.nodes})
    clients = registry.clients
    return evaluate_on_clients(grid, registry, clients, REQUEST, 1.0, Traffic())


def test_client_evaluations_are_added_up_not_averaged() -> None:
    def node(n: int, correct: int) -> Any:
        metrics = MetricRecord({"num-examples": n, "correct": correct, "loss": 2.0})
        return partial(reply_with, metrics=metrics)

    metrics = evaluate(SpyGrid({101: node(100, 90), 102: node(1, 0), 103: node(0, 0)}))
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
    metrics = evaluate(SpyGrid(dict(enumerate([*made, reply_with, fail], start=101))))
    assert metrics.accuracy == 0.75
    assert metrics.total == 4


def test_no_evaluation_at_all_is_none() -> None:
    assert evaluate(SpyGrid({101: fail})) is None
