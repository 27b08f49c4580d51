"""Nodes that join late, leave, start anew or keep silent while a run goes on."""

from typing import Any

import pytest
from flwr.app import Context, Message

from fed3r_app.errors import RunError
from tests.harness.nodes import ALL, LABELS, Federation, at_first

STATISTICS = "train.statistics"


def keep_back(grid: Any, times: Any) -> None:
    """Let the first node keep its statistics back so many times."""
    first, left = min(grid.get_node_ids()), [True] * times

    def silent(node: Any, kind: str) -> Any:
        return node == first and kind == STATISTICS and left and left.pop()

    grid.silent = silent


def test_a_node_that_joins_during_the_run_takes_part(federation: Federation) -> None:
    labels = ",".join(LABELS)
    outcome = federation.run_with_late(ALL[:3], ALL[3], STATISTICS, labels=labels)
    federation.assert_pooled(outcome)
    summary = outcome.summary
    assert summary["clients"] == summary["clients_counted"] == 4
    assert summary["rounds"] == 2
    assert len(outcome.grid.log) == 8, "everybody is asked twice, nobody more often"


def test_somebody_may_come_while_a_late_one_is_asked(federation: Federation) -> None:
    grid = federation.make_grid(ALL[:2], labels=",".join(LABELS))
    waiting = [(900 + i, federation.node_config(c)) for i, c in enumerate(ALL[2:])]

    def before(message: Message, context: Context) -> None:
        if message.metadata.message_type == STATISTICS and waiting:
            federation.connect(*waiting.pop())

    grid.before = before
    federation.assert_pooled(federation.run(grid=grid))


def test_a_late_node_with_another_class_is_left_out_by_name(
    federation: Federation,
) -> None:
    late = "clinic-10"  # the only one with a yak
    outcome = federation.run_with_late(ALL[:3], late, STATISTICS)
    federation.assert_pooled(outcome, ALL[:3])
    assert "got 'yak'" in outcome.summary["refused"]["clinic-10"]


def test_resuming_takes_it_in_with_its_class(federation: Federation) -> None:
    federation.run(ALL[:3])
    outcome = federation.run(ALL, resume=True)
    federation.assert_pooled(outcome)
    assert federation.grid.asked[STATISTICS] == 1, "only the new one is asked"


def test_a_part_of_a_data_set_may_come_later_too(federation: Federation) -> None:
    def grid(parts: Any, **settings: Any) -> Any:
        made = federation.make_grid([], dataset="digits", **settings)
        for part in parts:
            federation.connect(100 + part, {"partition-id": part, "num-partitions": 3})
        return made

    federation.run(grid=grid([0, 2], wait_for=2))
    outcome = federation.run(grid=grid([0, 1, 2], resume=True))
    assert outcome.summary["clients_counted"] == 3


def test_the_flops_of_the_average_client_do_not_show_who_came_when(
    federation: Federation,
) -> None:
    labels = ",".join(LABELS)
    whole = federation.run(ALL, run_name="whole", labels=labels)
    federation.run(ALL[:3], labels=labels)
    parts = federation.run(ALL, resume=True, labels=labels)
    flops = [one.summary["flops_per_client"] for one in (whole, parts)]
    assert flops[0] == pytest.approx(flops[1], rel=1e-12)


def test_resuming_keeps_the_classes_of_those_who_are_gone(
    federation: Federation,
) -> None:
    federation.run(ALL)
    outcome = federation.run(["clinic-a"], resume=True)
    assert outcome.model.class_names == LABELS
    federation.assert_pooled(outcome)


def test_a_late_node_under_a_name_that_is_taken_is_left_out(
    federation: Federation,
) -> None:
    outcome = federation.run_with_late(ALL, "clinic-b", STATISTICS)
    federation.assert_pooled(outcome)
    assert any("unique" in why for why in outcome.summary["refused"].values())


def test_a_node_that_is_started_anew_is_asked_under_its_new_id(
    federation: Federation,
) -> None:
    grid = federation.make_grid(ALL, clients_per_round=1)
    restarted = []

    def restart(node: Any) -> None:
        other = next(n for n in grid.get_node_ids() if n != node)
        federation.restart(other, 999)
        restarted.append(other)

    grid.before = at_first(STATISTICS, restart)
    federation.assert_pooled(federation.run(grid=grid))
    assert restarted
    asked = [node for node, kind in grid.log if kind == STATISTICS]
    assert 999 in asked
    assert not set(asked) & set(restarted)


def test_a_node_that_restarts_between_hello_and_hello_is_one_client(
    federation: Federation,
) -> None:
    grid = federation.make_grid(ALL, wait_for=4)
    last = max(grid.get_node_ids())

    def restart(message: Message, context: Context) -> None:
        if context.node_id == last:  # everybody else has said hello
            grid.before = lambda message, context: None
            federation.restart(min(grid.get_node_ids()), 999)

    grid.before = restart
    federation.assert_pooled(federation.run(grid=grid))


def test_a_straggler_is_asked_again(federation: Federation) -> None:
    grid = federation.make_grid(ALL, round_timeout=0.5)
    keep_back(grid, 1)
    federation.assert_pooled(federation.run(grid=grid))


def test_a_node_that_stays_silent_is_named(federation: Federation) -> None:
    grid = federation.make_grid(ALL, round_timeout=0.3, max_retries=1)
    keep_back(grid, 9)
    with pytest.raises(RunError, match=r"3 of 4 clients .* clinic-a.*no reply"):
        federation.run(grid=grid)


def test_with_min_clients_a_silent_node_is_done_without(federation: Federation) -> None:
    grid = federation.make_grid(ALL, round_timeout=0.3, max_retries=1, min_clients=3)
    keep_back(grid, 9)
    outcome = federation.run(grid=grid)
    federation.assert_pooled(outcome, ALL[1:])
    assert outcome.summary["missing_clients"] == ["clinic-a"]
