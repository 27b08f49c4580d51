"""What is computed beside the runs: the coupon table, and kernels on a subset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fed3r_app.files import write_atomically
from simulation.runner.experiment import Experiment, Kernel, curve_of
from simulation.runner.store import Store, run_name
from simulation.runner.tasks import Report, Task, TaskError

Lines = list[dict[str, Any]]


def analyses_wanted(experiment: Experiment, store: Store) -> list[Task]:
    """Return what has to be computed beside the runs and has not been yet."""
    if not _asked(experiment) or read_lines(experiment, store) is not None:
        return []
    kernel = "exact kernel, random features"
    title = "coupon collector" if experiment.coupons else kernel
    log = _file(experiment, store).with_suffix(".log")
    return [Task(title, log, partial(analyse, experiment, store))]


def analyse(experiment: Experiment, store: Store, _: ExitStack, report: Report) -> None:
    """Compute all lines that an experiment asks for, then write the file."""
    coupons, kernel = experiment.coupons, experiment.kernel
    lines: Lines = []
    if coupons:
        for line in coupons.lines():
            lines.append(line)
            report(len(lines), len(coupons.federations) * len(coupons.per_round))
    elif kernel:
        lines = list(_compare(experiment, kernel, store, report))
    file = _file(experiment, store)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"asked": _asked(experiment), "lines": lines}
    write_atomically(file, json.dumps(content, indent=1).encode() + b"\n")


def _compare(
    experiment: Experiment, kernel: Kernel, store: Store, report: Report
) -> Iterator[dict[str, Any]]:
    """Yield random features against the exact kernel, on each model's features."""
    from simulation.analyses.kernel_comparison import compare_with_kernel

    runs = experiment.runs
    for run in runs:
        if store.summary(run) is None:
            raise TaskError(f"The run {run.title!r} is missing: it has no model.")
    for place, run in enumerate(runs):

        def advance(done: int, total: int, before: int = place) -> None:
            report(before * total + done, len(runs) * total)

        folder, sizes = store.directory(run).path, (kernel.dims, kernel.per_class)
        for line in compare_with_kernel(folder, *sizes, kernel.seeds, advance):
            yield {"features": curve_of(run), **asdict(line)}


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
    merged: dict[tuple[str, int | None], dict[str, Any]] = {}
    for line in lines:
        key = line["features"], line["dim"]
        same = merged.setdefault(key, {**line, "accuracies": []})
        same["accuracies"] += line["accuracies"]
    return list(merged.values())


def _asked(experiment: Experiment) -> Any:
    """Return what is asked for, as JSON gives it back."""
    asked = experiment.coupons or experiment.kernel
    runs = [run_name(run) for run in experiment.runs] if experiment.kernel else []
    return json.loads(json.dumps({**asdict(asked), "runs": runs})) if asked else None


def _file(experiment: Experiment, store: Store) -> Path:
    name = "coupons" if experiment.coupons else "kernel"
    return store.root / experiment.name / f"{name}.json"
