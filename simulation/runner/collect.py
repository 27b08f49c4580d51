"""What came of an experiment's runs: a table of all, and curves over the seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fed3r_app.files import write_atomically
from simulation.runner.experiment import Experiment, curve_of
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store, run_name

Values = Mapping[str, object]
_LISTS = ("missing_clients", "absent_classes")


@dataclass(frozen=True)
class Finished:
    """A run that is through: its outcome and its rounds."""

    run: ExperimentRun
    summary: Values
    metrics: list[Values]

    def measure(self, key: str) -> float | None:
        """Return a number of the summary, where there is one."""
        return _number(self.summary, key)


@dataclass(frozen=True)
class Results:
    """All that is there of an experiment."""

    experiment: Experiment
    finished: list[Finished]
    missing: list[ExperimentRun]
    reference: Finished | None

    def curves(self, *without: str) -> dict[str, list[Finished]]:
        """Return the runs of each curve, which differ in their seeds and some axes."""
        return group(self.finished, lambda each: curve_of(each.run, *without))


def group(
    runs: Iterable[Finished], key: Callable[[Finished], str]
) -> dict[str, list[Finished]]:
    """Return runs by a key, in the order in which the keys come."""
    groups: dict[str, list[Finished]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def collect(experiment: Experiment, store: Store) -> Results:
    """Return what there is of an experiment."""
    finished = {run.identity: _read(run, store) for run in experiment.all_runs}
    runs = [(run, finished[run.identity]) for run in experiment.runs]
    reference = experiment.reference
    return Results(
        experiment,
        [each for _, each in runs if each],
        [run for run, each in runs if not each],
        finished[reference.identity] if reference else None,
    )


def _read(run: ExperimentRun, store: Store) -> Finished | None:
    summary = store.summary(run)
    if summary is None:
        return None
    return Finished(run, summary, list(store.directory(run).read_metrics()))


def _number(values: Values, key: str) -> float | None:
    """Return a number, or None where there is none of that name."""
    value = values.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def known_values(runs: Iterable[Finished], key: str) -> list[float]:
    """Return a number of the summaries of runs, of those that have it."""
    return [value for run in runs if (value := run.measure(key)) is not None]


def deviation(values: ArrayLike) -> NDArray[np.float64]:
    """Return the sample standard deviation of values (n, ...), (...).

    The seeds are a sample of all seeds: the squares' sum is divided by n - 1. One value
    has no spread: 0.
    """
    array = np.asarray(values, dtype=np.float64)
    spread: NDArray[np.float64] = array.std(axis=0, ddof=int(len(array) > 1))
    return spread


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy against costs, over seeds; arrays of one value a measured round.

    Mean and sample standard deviation of the accuracy; means of what was spent so far:
    rounds, bytes in both directions, average FLOPs per client.
    """

    accuracy: NDArray[np.float64]
    spread: NDArray[np.float64]
    rounds: NDArray[np.float64]
    bytes: NDArray[np.float64]
    flops: NDArray[np.float64]


def average(runs: list[Finished]) -> Curve | None:
    """Return the curve of runs that differ in their seeds; None without accuracies.

    A run that ended before the others keeps its last values.
    """
    tables = [table for table in map(measured, runs) if len(table)]
    if not tables:
        return None
    first = max(table[0, 0] for table in tables)
    rounds = np.unique(np.concatenate([table[:, 0] for table in tables]))
    rounds = rounds[rounds >= first]
    # The last measured round at or before each round.
    places = [np.searchsorted(each[:, 0], rounds, side="right") - 1 for each in tables]
    stacked = np.stack([each[at] for each, at in zip(tables, places, strict=True)])
    mean, spread = stacked.mean(axis=0), deviation(stacked)
    return Curve(mean[:, 1], spread[:, 1], rounds, mean[:, 2], mean[:, 3])


def measured(run: Finished) -> NDArray[np.float64]:
    """Return round, accuracy, bytes and FLOPs (m, 4) of the rounds with an accuracy."""
    rows = [
        (
            _number(line, "round"),
            _number(line, "accuracy"),
            (_number(line, "upload_bytes") or 0)
            + (_number(line, "download_bytes") or 0),
            _number(line, "flops_per_client"),
        )
        for line in run.metrics
        if _number(line, "accuracy") is not None
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def to_reach(run: Finished, accuracy: float) -> NDArray[np.float64] | None:
    """Return rounds, bytes and FLOPs when an accuracy was first measured, or None."""
    table = measured(run)
    reached = np.flatnonzero(table[:, 1] >= accuracy)
    return table[reached[0], [0, 2, 3]] if len(reached) else None


def rows_of(results: Results) -> list[dict[str, object]]:
    """Return a row for each run: its place in the grid, its settings, its outcome."""
    both = [*results.finished, *([results.reference] if results.reference else [])]
    configs = [each.run.config for each in both]
    varying = [
        key
        for key in (configs[0] if configs else ())
        if key == "seed" or len({repr(config[key]) for config in configs}) > 1
    ]
    return [
        {
            "experiment": results.experiment.name,
            "run": run_name(each.run),
            "curve": curve_of(each.run),
            **{key: each.run.config[key] for key in varying},
            **{key: each.summary[key] for key in each.summary if key not in _LISTS},
            "clients": each.run.clients,
        }
        for each in both
    ]


def write_rows(rows: list[dict[str, object]], folder: Path) -> None:
    """Write rows as CSV and as JSON lines."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "results.csv", text.getvalue().encode())
    write_atomically(folder / "results.jsonl", lines.encode())
