"""Nodes that are gone for a while: asked again once they are back, for one timeout."""

import threading
import time
from typing import Any

import pytest

from fed3r_app.errors import RunError
from tests.harness.nodes import ALL, Federation, at_first

STATISTICS = "train.statistics"


def leave_at_first_request(
    federation: Federation, come_back: Any = None, **settings: Any
) -> Any:
    """Return a grid whose last node goes when the first is asked, and which it is."""
    grid = federation.make_grid(ALL, clients_per_round=1, max_retries=0, **settings)
    left = []

    def leave(asked: int) -> None:
        node = next(n for n in grid.get_node_ids() if n != asked)
        reply = grid.nodes.pop(node)
        left.append(node)
        if come_back:
            threading.Timer(1.0, come_back, (node, reply)).start()

    grid.before = at_first(STATISTICS, leave)
    return grid, left


def times_asked(grid: Any, node: int) -> Any:
    return grid.log.count((node, STATISTICS))


def test_who_is_back_before_the_timeout_is_asked(federation: Federation) -> None:
    def come_back(node: int, reply: Any) -> None:
        federation.grid.nodes[node] = reply

    grid, left = leave_at_first_request(federation, come_back)
    outcome = federation.run(grid=grid)
    federation.assert_pooled(outcome)
    assert outcome.summary["clients_counted"] == 4
    assert times_asked(grid, *left) == 1


def test_who_is_back_as_another_node_is_asked_there(federation: Federation) -> None:
    def come_back(node: int, reply: Any) -> None:
        node_config = federation.grid.contexts.pop(node).node_config
        federation.connect(999, node_config)

    grid, left = leave_at_first_request(federation, come_back)
    federation.assert_pooled(federation.run(grid=grid))
    assert times_asked(grid, *left) == 0
    assert times_asked(grid, 999) == 1


def test_who_stays_away_is_given_up_after_one_timeout_and_named(
    federation: Federation,
) -> None:
    grid, _ = leave_at_first_request(federation, round_timeout=1.0)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"3 of 4 .*missing: clinic.*not connected"):
        federation.run(grid=grid)
    assert 1 <= time.monotonic() - began < 10


def test_others_who_come_are_not_kept_waiting(federation: Federation) -> None:
    labels = "cat,dog,elk,owl,yak"
    grid = federation.make_grid(ALL[:2], labels=labels, max_retries=0)
    absent, late = min(grid.get_node_ids()), federation.node_config(ALL[2])

    def refuse(message: Any) -> bool:
        """Say that a node is gone until the late one has been asked."""
        at_statistics = message.metadata.message_type == STATISTICS
        if at_statistics and 999 not in grid.nodes:
            federation.connect(999, late)
        to_absent = at_statistics and message.metadata.dst_node_id == absent
        return to_absent and not grid.of(STATISTICS, 999)

    grid.gone = refuse
    federation.assert_pooled(federation.run(grid=grid), ALL[:3])


def test_once_min_clients_are_counted_a_silent_node_costs_one_timeout(
    federation: Federation,
) -> None:
    grid = federation.make_grid(ALL, round_timeout=0.5, max_retries=3, min_clients=3)
    first = min(grid.get_node_ids())
    grid.silent = lambda node, kind: node == first and kind == STATISTICS
    outcome = federation.run(grid=grid)
    federation.assert_pooled(outcome, ALL[1:])
    assert times_asked(grid, first) == 1
