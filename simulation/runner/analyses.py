"""What is computed beside the runs: the coupon table, and kernels on a subset."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fed3r_app.files import write_atomically
from simulation.runner.experiment import Experiment, Kernel, curve_of
from simulation.runner.outcome_tables import percent
from simulation.runner.store import Store, run_name
from simulation.runner.tasks import Report, Task, TaskError, WorkerContext
from simulation.tables import Table

Lines = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class AnalysisTask(Task):
    """Computes lines from what an experiment asks for, and writes them to a file."""

    experiment: Experiment
    store: Store

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Compute all lines, then write the file."""
        coupons, kernel = self.experiment.coupons, self.experiment.kernel
        lines: Lines = []
        if coupons:
            for line in coupons.lines():
                lines.append(line)
                report(len(lines), len(coupons.federations) * len(coupons.per_round))
        elif kernel:
            lines = self._compare(kernel, report)
        file = _file(self.experiment, self.store)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"asked": _asked(self.experiment), "lines": lines}
        write_atomically(file, json.dumps(content, indent=1).encode() + b"\n")

    def _compare(self, kernel: Kernel, report: Report) -> Lines:
        """Return random features against the exact kernel, on each model's features."""
        from simulation.analyses.kernel_comparison import compare_with_kernel

        lines, runs = [], self.experiment.runs
        for run in runs:
            if self.store.summary(run) is None:
                raise TaskError(f"The run {run.title!r} is missing: it has no model.")
        for place, run in enumerate(runs):
            found = compare_with_kernel(
                self.store.directory(run).path,
                kernel.dims,
                kernel.per_class,
                kernel.seeds,
                partial(_report_part, report, place, len(runs)),
            )
            lines += [{"features": curve_of(run), **asdict(line)} for line in found]
        return lines


def _report_part(report: Report, place: int, parts: int, done: int, total: int) -> None:
    """Report how much is done of all parts, when so much is done of one."""
    report(place * total + done, parts * total)


def kernel_table(lines: Lines) -> Table:
    """Return the accuracy of random features and of the exact kernel."""
    rows = []
    for line in lines:
        dim = "exact kernel" if line["dim"] is None else f"{line['dim']:,}"
        rows.append((line["features"], dim, percent(line["accuracies"])))
    title = "Random features against exact kernel ridge regression on a subset"
    return Table(title, ("features", "D", "accuracy (%)"), rows)


def analyses_wanted(experiment: Experiment, store: Store) -> list[Task]:
    """Return what has to be computed beside the runs and has not been yet."""
    asked = experiment.coupons or experiment.kernel
    if not asked or read_lines(experiment, store) is not None:
        return []
    kernel = "exact kernel, random features"
    title = "coupon collector" if experiment.coupons else kernel
    log = _file(experiment, store).with_suffix(".log")
    return [AnalysisTask(title, log, experiment, store)]


def read_lines(experiment: Experiment, store: Store) -> Lines | None:
    """Return what was computed beside the runs, if it is what is asked for now."""
    try:
        content = json.loads(_file(experiment, store).read_text())
    except (OSError, ValueError):
        return None
    if content.get("asked") != _asked(experiment):
        return None
    lines: Lines = content["lines"]
    return _over_seeds(lines) if experiment.kernel else lines


def _over_seeds(lines: Lines) -> Lines:
    """Return one line for each features and D, with the accuracies of all seeds."""
    merged: dict[tuple[str, int | None], list[float]] = {}
    for line in lines:
        key = line["features"], line["dim"]
        merged.setdefault(key, []).extend(line["accuracies"])
    names = ("features", "dim", "accuracies")
    return [dict(zip(names, (*key, each), strict=True)) for key, each in merged.items()]


def _asked(experiment: Experiment) -> Any:
    """Return what is asked for, as JSON gives it back."""
    asked = experiment.coupons or experiment.kernel
    runs = [run_name(run) for run in experiment.runs] if experiment.kernel else []
    return json.loads(json.dumps({**asdict(asked), "runs": runs})) if asked else None


def _file(experiment: Experiment, store: Store) -> Path:
    name = "coupons" if experiment.coupons else "kernel"
    return store.folder(experiment.name) / f"{name}.json"
