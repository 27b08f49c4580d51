"""One client of any number of samples with flipped labels does not own the model.

The splits are the server's own, which it has no reason to doubt: here it is made to.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.core import RidgeStatistics
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.errors import RunError
from fed3r_app.server.context import RunContext
from tests.harness.attacks import Attacker
from tests.harness.fixtures import app_runs
from tests.harness.grid import SpyGrid
from tests.harness.pixels import PIXELS, pixels
from tests.harness.runs import AppRuns, Outcome

HUGE = 10**12  # the most that may be announced
DIRICHLET = {"partition": "dirichlet", "alpha": 0.5}
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet": DIRICHLET,
}
MOST_LOST = 0.02  # of the accuracy without the attacker


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    monkeypatch.setattr(RunContext, "made_the_split", False)
    given = {"clients-per-round": 0, "max-retries": 0, "round-timeout": 20.0}
    return app_runs(tmp_path, monkeypatch, PIXELS | given)


def attacker(client: int, number: int, split: str = "iid", **most: int) -> Attacker:
    """Return a client that announces, and sends, so many copies of its digits."""
    how = SPLITS[split]
    data = load_dataset("digits", "")
    rows = split_rows(data, how["partition"], number, how.get("alpha", 0.0), 0)[client]
    Z, y = pixels(rows)
    copies = {key: n // len(y) for key, n in most.items()}
    return Attacker(client, RidgeStatistics.of(Z, y, 10), **copies)


def without(run: AppRuns, gone: set[int], number: int, **settings: Any) -> Outcome:
    """Run the app on all clients of a split but some."""
    left = number - len(gone)
    config = run.config({"run_name": "without", "wait_for": left, **settings})
    grid = SpyGrid(seed=0)
    for i in sorted(set(range(number)) - gone):
        grid.connect(2 + i, {"partition-id": i, "num-partitions": number}, config)
    return run.on(grid, config)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("number", [10, 100])
def test_a_client_that_outweighs_all_others_is_held_back_and_named(
    run: AppRuns, number: int, split: str
) -> None:
    attack = attacker(0, number, split, announced=HUGE, sent=HUGE)
    outcome = run(number, tamper=attack, **SPLITS[split])
    assert "more than all others together" in outcome.summary["refused"]["0"]
    expected = without(run, {0}, number, **SPLITS[split]).summary["accuracy"]
    assert outcome.summary["accuracy"] >= expected - MOST_LOST


@pytest.mark.parametrize("sent", [HUGE, 290])
def test_a_contribution_of_more_samples_than_announced_is_refused(
    run: AppRuns, sent: int
) -> None:
    settings: dict[str, Any] = {"min_clients": 9, "partition": "iid"}
    outcome = run(10, tamper=attacker(0, 10, sent=sent), **settings)
    assert outcome.summary["missing_clients"] == ["0"]
    (refused,) = [entry for entry in outcome.ledger if entry.outcome == "refused"]
    assert "n must be 145, as announced" in refused.reason
    expected = without(run, {0}, 10, **settings).summary["accuracy"]
    assert outcome.summary["accuracy"] == expected


def test_two_that_cover_each_other_are_both_held_back(run: AppRuns) -> None:
    attacks = [attacker(i, 10, announced=HUGE, sent=HUGE) for i in (0, 1)]

    def tamper(*exchange: Any) -> None:
        for attack in attacks:
            attack(*exchange)

    outcome = run(10, tamper=tamper, partition="iid")
    assert outcome.summary["refused"].keys() == {"0", "1"}
    assert outcome.summary["clients_counted"] == 8


def test_of_fewer_clients_the_largest_is_warned_about(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    attack = attacker(0, 9, announced=HUGE, sent=HUGE)
    outcome = run(9, tamper=attack, partition="iid")
    assert outcome.summary["clients_counted"] == 9
    assert "more than all others together; max-client-samples" in caplog.text
    with pytest.raises(RunError, match="n must be <= max-client-samples = 500"):
        run(9, tamper=attack, partition="iid", max_client_samples=500, run_name="b")


def test_the_server_s_own_splits_are_not_doubted(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunContext, "made_the_split", True)
    attack = attacker(0, 10, announced=HUGE, sent=HUGE)
    outcome = run(10, tamper=attack, partition="iid")
    assert outcome.summary["clients_counted"] == 10
    assert outcome.summary["accuracy"] < 0.2  # what the rule is for


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("number", [10, 100])
def test_below_the_rule_a_client_weighs_as_much_as_all_others(
    run: AppRuns, split: str, number: int
) -> None:
    """It knows the numbers of all others; shown in the table of SECURITY.md."""
    settings = SPLITS[split]
    honest = without(run, {0}, number, **settings).summary
    own = attacker(0, number, split)
    flips = run(number, tamper=replace(own, sent=1), run_name="own", **settings).summary
    most = honest["num_samples"] // own.own.n
    attack = replace(own, announced=most, sent=most)
    below = run(number, tamper=attack, run_name="below", **settings).summary
    assert below["clients_counted"] == flips["clients_counted"] == number
    shown = [f"{each['accuracy']:.1%}" for each in (honest, flips, below)]
    print(f"| {split}, {number} clients | {' | '.join(shown)} |")
    assert flips["accuracy"] >= honest["accuracy"] - 0.03
