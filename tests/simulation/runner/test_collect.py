"""Curves over seeds and costs to a target, on rounds made by hand."""

import pytest

from simulation.runner.collect import (
    Finished,
    Results,
    average,
    standard_deviation,
    to_reach,
)
from simulation.runner.experiment import Experiment, load
from simulation.runner.outcome_tables import outcome_table, percent, target_table
from simulation.runner.run_grid import ExperimentRun

Round = tuple[int, float | None, int, int, float]


def finished(label: str, seed: int, *rounds: Round) -> Finished:
    """A run whose rounds are (round, accuracy, bytes up, bytes down, FLOPs)."""
    keys = ("round", "accuracy", "upload_bytes", "download_bytes", "flops_per_client")
    metrics = [dict[str, object](zip(keys, each, strict=True)) for each in rounds]
    run = ExperimentRun(
        {"method": label, "seed": f"seed {seed}"}, 10, 2, {"seed": seed}
    )
    return Finished(run, {"accuracy": rounds[-1][1]}, metrics)


EXPERIMENT: Experiment = load("coupons-digits")[0]  # any: it is not asked
FAST = [
    finished("fast", 0, (1, 0.4, 10, 0, 5.0), (2, 0.8, 20, 0, 10.0)),
    finished("fast", 1, (1, 0.6, 30, 0, 5.0)),
]
SLOW = [
    finished("slow", 0, (10, 0.3, 50, 50, 40.0), (20, 0.7, 100, 100, 80.0)),
    finished("slow", 1, (10, None, 50, 50, 40.0), (20, 0.4, 100, 100, 80.0)),
]


def test_a_curve_is_the_mean_of_its_seeds_and_an_ended_run_keeps_its_last_values() -> (
    None
):
    mean, spread = average(FAST)
    accuracy, rounds, sent, flops = mean.T
    assert rounds.tolist() == [1, 2]
    assert accuracy == pytest.approx([0.5, 0.7])
    assert spread[:, 0] == pytest.approx([0.02**0.5, 0.02**0.5])
    assert sent.tolist() == [20, 25]
    assert flops.tolist() == [5, 7.5]


def test_a_spread_is_that_of_a_sample() -> None:
    assert standard_deviation([0.4, 0.6]) == pytest.approx(0.02**0.5)
    assert standard_deviation([0.4]) == 0
    assert percent([0.4, 0.6]) == "50.00 ± 14.14"
    assert percent([0.4]) == "40.00"


def test_a_table_says_of_how_many_seeds_its_means_are() -> None:
    whole = outcome_table(Results(EXPERIMENT, [*FAST, *SLOW], []))
    assert whole.title == "At the end, mean ± sample standard deviation of 2 seeds"
    assert whole.columns == ("", "accuracy (%)")
    parts = outcome_table(Results(EXPERIMENT, [*FAST, SLOW[0]], [SLOW[1].run]))
    assert parts.title == "At the end, mean ± sample standard deviation of the seeds"
    assert parts.columns == ("", "seeds", "accuracy (%)")
    assert parts.rows == [("fast", "2", "70.00 ± 14.14"), ("slow", "1", "70.00")]


def test_a_curve_begins_where_all_its_runs_were_measured() -> None:
    assert average(SLOW)[0][:, 1].tolist() == [20]
    assert not len(average([finished("blind", 0, (1, None, 1, 1, 1.0))])[0])


def test_a_target_is_reached_when_it_is_first_measured() -> None:
    fast, slow = to_reach(FAST[0], 0.5), to_reach(SLOW[0], 0.3)
    assert fast is not None and fast.tolist() == [2, 20, 10]
    assert slow is not None and slow.tolist() == [10, 100, 40]
    assert to_reach(SLOW[0], 0.9) is None


def test_speed_ups_are_relative_to_the_baseline() -> None:
    table = target_table(Results(EXPERIMENT, [*FAST, *SLOW], []), 0.5, "slow")
    assert table.rows == [
        ("fast", "2 of 2", "1.5", "13.3x", "25 B", "8x", "7.5", "10.7x"),
        ("slow", "1 of 2", "20.0", "1x", "200 B", "1x", "80", "1x"),
    ]


def test_a_curve_that_never_gets_there_has_no_costs() -> None:
    table = target_table(Results(EXPERIMENT, [*FAST, *SLOW], []), 0.75, "slow")
    assert table.rows[0][:4] == ("fast", "1 of 2", "2.0", None)
    assert set(table.rows[1][2:]) == {None}
