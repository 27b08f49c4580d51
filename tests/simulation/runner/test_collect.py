"""Curves over seeds and costs to a target, on rounds made by hand."""

import pytest

from simulation.runner.collect import Finished, Results, average, deviation, to_reach
from simulation.runner.experiment import Target
from simulation.runner.outcome_tables import outcome_table, percent, target_tables
from simulation.runner.run_grid import ExperimentRun


def finished(label, seed, *rounds):
    """A run whose rounds are (round, accuracy, bytes up, bytes down, FLOPs)."""
    keys = ("round", "accuracy", "upload_bytes", "download_bytes", "flops_per_client")
    metrics = [dict(zip(keys, values, strict=True)) for values in rounds]
    run = ExperimentRun(
        {"method": label, "seed": f"seed {seed}"}, 10, 2, {"seed": seed}
    )
    return Finished(run, {"accuracy": rounds[-1][1]}, metrics)


FAST = [
    finished("fast", 0, (1, 0.4, 10, 0, 5.0), (2, 0.8, 20, 0, 10.0)),
    finished("fast", 1, (1, 0.6, 30, 0, 5.0)),
]
SLOW = [
    finished("slow", 0, (10, 0.3, 50, 50, 40.0), (20, 0.7, 100, 100, 80.0)),
    finished("slow", 1, (10, None, 50, 50, 40.0), (20, 0.4, 100, 100, 80.0)),
]


def test_a_curve_is_the_mean_of_its_seeds_and_an_ended_run_keeps_its_last_values():
    curve = average(FAST)
    assert curve.rounds.tolist() == [1, 2]
    assert curve.accuracy == pytest.approx([0.5, 0.7])
    assert curve.spread == pytest.approx([0.02**0.5, 0.02**0.5])
    assert curve.bytes.tolist() == [20, 25]
    assert curve.flops.tolist() == [5, 7.5]


def test_a_spread_is_that_of_a_sample():
    assert deviation([0.4, 0.6]) == pytest.approx(0.02**0.5)
    assert deviation([0.4]) == 0
    assert percent([0.4, 0.6]) == "50.00 ± 14.14"
    assert percent([0.4]) == "40.00"


def test_a_table_says_of_how_many_seeds_its_means_are():
    whole = outcome_table(Results(None, [*FAST, *SLOW], [], None))
    assert whole.title == "At the end, mean ± sample standard deviation of 2 seeds"
    assert whole.columns == ("", "accuracy (%)")
    parts = outcome_table(Results(None, [*FAST, SLOW[0]], [SLOW[1].run], None))
    assert parts.title == "At the end, mean ± sample standard deviation of the seeds"
    assert parts.columns == ("", "seeds", "accuracy (%)")
    assert parts.rows == [("fast", "2", "70.00 ± 14.14"), ("slow", "1", "70.00")]


def test_a_curve_begins_where_all_its_runs_were_measured():
    assert average(SLOW).rounds.tolist() == [20]
    assert average([finished("blind", 0, (1, None, 1, 1, 1.0))]) is None


def test_a_target_is_reached_when_it_is_first_measured():
    assert to_reach(FAST[0], 0.5).tolist() == [2, 20, 10]
    assert to_reach(SLOW[0], 0.3).tolist() == [10, 100, 40]
    assert to_reach(SLOW[0], 0.9) is None


def test_speed_ups_are_relative_to_the_baseline():
    results = Results(None, [*FAST, *SLOW], [], None)
    (table,) = target_tables(results, Target((0.5,), "slow"))
    assert table.rows == [
        ("fast", "2 of 2", "1.5", "13.3x", "25 B", "8x", "7.5", "10.7x"),
        ("slow", "1 of 2", "20.0", "1x", "200 B", "1x", "80", "1x"),
    ]


def test_a_curve_that_never_gets_there_has_no_costs():
    results = Results(None, [*FAST, *SLOW], [], None)
    (table,) = target_tables(results, Target((0.75,), "slow"))
    assert table.rows[0][:4] == ("fast", "1 of 2", "2.0", "-")
    assert set(table.rows[1][2:]) == {"-"}
