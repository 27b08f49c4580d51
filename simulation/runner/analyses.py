"""What is computed beside the runs: the coupon table, and kernels on a subset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fed3r_app.files import write_atomically
from simulation.analyses.coupon_collector import Coupons
from simulation.runner.experiment import Experiment, Kernel, curve_of
from simulation.runner.outcome_tables import percent
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store, run_name
from simulation.runner.tasks import Report, Task, TaskError, WorkerContext
from simulation.tables import Table

Lines = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class CouponsTask:
    """Rounds to draw a share of the clients with replacement."""

    coupons: Coupons
    file: Path
    title: str = "coupon collector"

    @property
    def log(self) -> Path:
        """Where it says what it does."""
        return self.file.with_suffix(".log")

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Simulate all draws."""
        asked, lines = self.coupons, []
        for line in asked.lines():
            lines.append(line)
            report(len(lines), len(asked.federations) * len(asked.per_round))
        _write(self.file, _asked(asked), lines)


@dataclass(frozen=True, eq=False)
class KernelTask:
    """Random features against the exact kernel, on the features of some models.

    Parameters
    ----------
    kernel : Kernel
        What is compared.
    runs : sequence of ExperimentRun
        The runs whose models' features are used.
    store : Store
        Where they are.
    file : Path
        Where the outcome goes.
    """

    kernel: Kernel
    runs: Sequence[ExperimentRun]
    store: Store
    file: Path
    title: str = "exact kernel and random features"

    @property
    def log(self) -> Path:
        """Where it says what it does."""
        return self.file.with_suffix(".log")

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Compare on each model's features."""
        from simulation.analyses.kernel_comparison import compare_with_kernel

        asked, lines = self.kernel, []
        self._check_models()
        for place, run in enumerate(self.runs):
            found = compare_with_kernel(
                self.store.directory(run).path,
                asked.dims,
                asked.per_class,
                asked.seeds,
                partial(_report_part, report, place, len(self.runs)),
            )
            features = curve_of(run)
            lines += [{"features": features, **asdict(line)} for line in found]
        _write(self.file, _asked(asked, map(run_name, self.runs)), lines)

    def _check_models(self) -> None:
        for run in self.runs:
            if self.store.summary(run) is None:
                raise TaskError(f"The run {run.title!r} is missing: it has no model.")


def _report_part(report: Report, place: int, parts: int, done: int, total: int) -> None:
    """Report how much is done of all parts, when so much is done of one."""
    report(place * total + done, parts * total)


def kernel_table(lines: Lines) -> Table:
    """Return the accuracy of random features and of the exact kernel."""
    rows = [
        (
            line["features"],
            "exact kernel" if line["dim"] is None else f"{line['dim']:,}",
            percent(line["accuracies"]),
        )
        for line in lines
    ]
    title = "Random features against exact kernel ridge regression on a subset"
    return Table(title, ("features", "D", "accuracy (%)"), rows)


def analyses_wanted(experiment: Experiment, store: Store) -> list[Task]:
    """Return what has to be computed beside the runs and has not been yet."""
    if read_lines(experiment, store) is not None:
        return []
    file = _file(experiment, store)
    if experiment.coupons:
        return [CouponsTask(experiment.coupons, file)]
    if experiment.kernel:
        return [KernelTask(experiment.kernel, experiment.runs, store, file)]
    return []


def read_lines(experiment: Experiment, store: Store) -> Lines | None:
    """Return what was computed beside the runs, if it is what is asked for now."""
    try:
        content = json.loads(_file(experiment, store).read_text())
    except (OSError, ValueError):
        return None
    asked = experiment.coupons or experiment.kernel
    names = [run_name(run) for run in experiment.runs] if experiment.kernel else []
    if asked is None or content.get("asked") != _asked(asked, names):
        return None
    lines: Lines = content["lines"]
    return _over_seeds(lines) if experiment.kernel else lines


def _over_seeds(lines: Lines) -> Lines:
    """Return one line for each features and D, with the accuracies of all seeds."""
    merged: dict[tuple[str, int | None], list[float]] = {}
    for line in lines:
        key = line["features"], line["dim"]
        merged.setdefault(key, []).extend(line["accuracies"])
    return [
        {"features": features, "dim": dim, "accuracies": accuracies}
        for (features, dim), accuracies in merged.items()
    ]


def _asked(what: Coupons | Kernel, names: Iterable[str] = ()) -> Any:
    """Return what was asked for, as JSON gives it back."""
    return json.loads(json.dumps({**asdict(what), "runs": list(names)}))


def _file(experiment: Experiment, store: Store) -> Path:
    name = "coupons" if experiment.coupons else "kernel"
    return store.folder(experiment.name) / f"{name}.json"


def _write(file: Path, asked: Any, lines: Lines) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"asked": asked, "lines": lines}, indent=1)
    write_atomically(file, text.encode() + b"\n")
