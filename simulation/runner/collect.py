"""The results of an experiment's runs, and their curves over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fed3r_app.runs.report import Values, number_of
from simulation.runner.analyses import Lines, read_lines
from simulation.runner.experiment import Experiment, curve_of
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store

_MEASURED = ("accuracy", "round", "upload_bytes", "download_bytes", "flops_per_client")


@dataclass(frozen=True)
class Finished:
    """A run that is through: its outcome and its rounds."""

    run: ExperimentRun
    summary: Values
    metrics: list[dict[str, object]]

    def measure(self, key: str) -> float | None:
        """Return a number of the summary, where there is one."""
        return number_of(self.summary, key)


@dataclass(frozen=True)
class Results:
    """All that is there of an experiment, with what was computed beside its runs."""

    experiment: Experiment
    finished: list[Finished]
    missing: list[ExperimentRun]
    reference: Finished | None = None
    lines: Lines | None = None

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
    finished, missing = [], []
    for run in experiment.runs:
        if each := _read(run, store):
            finished.append(each)
        else:
            missing.append(run)
    level = experiment.reference
    reference = _read(level, store) if level else None
    lines = read_lines(experiment, store)
    return Results(experiment, finished, missing, reference, lines)


def _read(run: ExperimentRun, store: Store) -> Finished | None:
    summary = store.summary(run)
    if summary is None:
        return None
    return Finished(run, summary, store.directory(run).read_metrics())


def known_values(runs: Iterable[Finished], key: str) -> list[float]:
    """Return a number of the summaries of runs, of those that have it."""
    return [value for run in runs if (value := run.measure(key)) is not None]


def standard_deviation(values: ArrayLike) -> NDArray[np.float64]:
    """Return the sample standard deviation of values (n, ...), (...).

    The seeds are a sample of all seeds: the squares' sum is divided by n - 1. One value
    has no spread: 0.
    """
    array = np.asarray(values, dtype=np.float64)
    spread: NDArray[np.float64] = array.std(axis=0, ddof=int(len(array) > 1))
    return spread


def measured(run: Finished) -> NDArray[np.float64]:
    """Return accuracy, round, bytes and FLOPs (m, 4) of the rounds with an accuracy.

    Bytes in both directions and average FLOPs per client are those up to that round.
    """
    rows = [[number_of(line, key) for key in _MEASURED] for line in run.metrics]
    table = np.array(rows, dtype=np.float64).reshape(-1, len(_MEASURED))
    accuracy, rounds, up, down, flops = table[~np.isnan(table[:, 0])].T
    sent = np.nan_to_num(up) + np.nan_to_num(down)
    return np.stack([accuracy, rounds, sent, flops], axis=1)


def average(runs: list[Finished]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and sample standard deviation over seeds of what is measured, (m, 4).

    A run that ended before the others keeps its last values; m is 0 without accuracies.
    """
    tables = [table for table in map(measured, runs) if len(table)]
    if not tables:
        return np.empty((0, 4)), np.empty((0, 4))
    first = max(table[0, 1] for table in tables)
    rounds = np.unique(np.concatenate([table[:, 1] for table in tables]))
    rounds = rounds[rounds >= first]
    # The last measured round at or before each round.
    places = [np.searchsorted(each[:, 1], rounds, side="right") - 1 for each in tables]
    stacked = np.stack([each[at] for each, at in zip(tables, places, strict=True)])
    mean = stacked.mean(axis=0)
    mean[:, 1] = rounds
    return mean, standard_deviation(stacked)


def to_reach(run: Finished, accuracy: float) -> NDArray[np.float64] | None:
    """Return rounds, bytes and FLOPs when an accuracy was first measured, or None."""
    table = measured(run)
    reached = np.flatnonzero(table[:, 0] >= accuracy)
    return table[reached[0], 1:] if len(reached) else None
