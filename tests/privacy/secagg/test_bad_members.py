"""One bad member costs its group, not the run: by its numbers, or by its replies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from clients import handlers, secagg_client
from fed3r_app.errors import RunError
from fed3r_app.privacy.secagg import IntegerStatistics, UnmaskMarker
from fed3r_app.server.context import RunContext
from tests.harness.grid import SpyGrid
from tests.harness.runs import AppRuns, Outcome

MOST_LOST = 0.02  # of the accuracy without the group


@pytest.fixture(autouse=True)
def _doubt_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunContext, "made_the_split", False)


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let client 0 send about n flipped samples."""
    honest = secagg_client.integer_vector

    def lie(n: int) -> None:
        def vector(node: Any, *asked: Any) -> Any:
            made = honest(node, *asked)
            if node.client_id != "0":
                return made
            own = IntegerStatistics.from_vector(made, 64, 10)
            k = n // int(own.counts.sum())
            b, counts = np.roll(own.b, 1, axis=1), np.roll(own.counts, 1)
            return IntegerStatistics(k * own.A, k * b, k * counts).vector()

        monkeypatch.setattr(handlers, "integer_vector", vector)

    return lie


def without(run: AppRuns, gone: set[str], number: int, **settings: Any) -> Outcome:
    """Run the app on all clients of a split but some."""
    left = number - len(gone)
    config = run.config({"run_name": "without", "wait_for": left, **settings})
    grid = SpyGrid(seed=0)
    for i in range(number):
        if str(i) not in gone:
            grid.connect(2 + i, {"partition-id": i, "num-partitions": number}, config)
    return run.on(grid, config)


# What is counted without being seen: all that the run allows, and more than that.
@pytest.mark.parametrize("n", [900_000, 2_000_000])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_a_group_that_outweighs_all_others_is_dropped_and_named(
    run: AppRuns, lie: Any, partition: str, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"secagg_group": 4, "min_clients": 8, "alpha": 0.5}
    settings |= {"partition": partition, "ridge_lambda": "auto"}
    lie(n)
    outcome = run(12, **settings)
    missing = set(outcome.summary["missing_clients"])
    assert "0" in missing
    assert len(missing) == 4
    assert "far more than all other groups together; its members are" in caplog.text
    assert all(f"Client {client} failed" in caplog.text for client in missing)
    expected = without(run, missing, 12, **settings).summary["accuracy"]
    assert outcome.summary["accuracy"] >= expected - MOST_LOST


def test_of_two_groups_the_one_ten_times_as_large_is_dropped(
    run: AppRuns, lie: Any
) -> None:
    lie(100_000)
    outcome = run(6, secagg_group=3, min_clients=3)
    assert "0" in outcome.summary["missing_clients"]
    assert outcome.summary["clients_counted"] == 3


def test_with_a_single_group_the_run_ends_in_a_sentence(run: AppRuns, lie: Any) -> None:
    lie(2_000_000)
    with pytest.raises(RunError, match=r"0 of 4 clients were counted.* was refused"):
        run(4, secagg_group=4)


def test_honest_groups_of_several_sizes_are_all_counted(run: AppRuns) -> None:
    outcome = run(12, secagg_group=4, partition="dirichlet", alpha=0.5)
    assert outcome.summary["clients_counted"] == 12


def low_order(config: Any) -> None:
    config["sealing"] = bytes(32)


def same_keys(config: Any) -> None:
    config["sealing"] = config["masking"]


def long_shares(config: Any) -> None:
    config["sealed"] = [bytes(10**6)] * len(config["sealed"])


@pytest.mark.parametrize("spoil", [low_order, same_keys, long_shares])
def test_keys_and_shares_that_nobody_can_use_cost_their_sender_alone(
    run: AppRuns, spoil: Any
) -> None:
    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        config: Any = reply.config_records.get("secagg", {})
        if context.node_config["partition-id"] == 0:
            if spoil is long_shares and "sealed" in config:
                spoil(config)
            if spoil is not long_shares and "masking" in config:
                spoil(config)

    outcome = run(5, tamper=tamper, min_clients=4, max_retries=0)
    assert outcome.summary["missing_clients"] == ["0"]


def test_two_requests_for_a_vector_at_once_get_one_vector(
    run: AppRuns, tmp_path: Path
) -> None:
    """Each in a process of its own, with the state as it was before both."""
    replies: list[Any] = []

    def before(message: Any, context: Context) -> None:
        if message.metadata.message_type == "query.masked" and not replies:
            state = RecordDict(dict(context.state.items()))
            other = Context(
                context.run_id, context.node_id, context.node_config, state, {}
            )
            other.run_config = context.run_config
            replies.append(handlers.app(message, other))

    with pytest.raises(RunError, match="of 3 clients were counted"):
        run(3, before=before, max_retries=0)
    assert not replies[0].has_error()
    masked = [e.reply for e in run.grid.of("query.masked")]
    assert masked.count(None) == 1


def test_an_attempt_is_marked_once(tmp_path: Path) -> None:
    mark = UnmaskMarker(tmp_path, 1, "clinic-7")
    mark.set_masked("one")
    mark.set_masked("two")
    with pytest.raises(ValueError, match="masks must not be used again"):
        UnmaskMarker(tmp_path, 1, "clinic-7").set_masked("one")
    mark.check()  # it has not answered the last request
