"""An experiment's tables: what each curve came to, beside the paper, to a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fed3r_app.runs.report import format_bytes, format_flops, format_seconds
from simulation.runner.analyses import Lines
from simulation.runner.collect import (
    Results,
    known_values,
    standard_deviation,
    to_reach,
)
from simulation.runner.experiment import Paper, curve_of
from simulation.tables import Table


def tables_of(results: Results) -> list[Table]:
    """Return all tables of an experiment."""
    experiment, tables = results.experiment, []
    if results.finished:
        tables.append(outcome_table(results))
        if target := experiment.target:
            goals = target.accuracies
            tables += [target_table(results, goal, target.baseline) for goal in goals]
    if paper := experiment.paper:
        tables.append(paper_table(results, paper))
    if results.lines and experiment.kernel:
        tables.append(kernel_table(results.lines))
    if results.lines and experiment.coupons:
        tables.append(experiment.coupons.table(results.lines))
    return tables


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation of shares in percent."""
    text = f"{100 * np.mean(values):.2f}"
    return (
        f"{text} ± {100 * standard_deviation(values):.2f}" if len(values) > 1 else text
    )


def _mean(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    return lambda values: form(float(np.mean(values)))


# Heading, key of the summary, how to write its values; empty columns are left out.
_COLUMNS: tuple[tuple[str, str, Callable[[Sequence[float]], str]], ...] = (
    ("accuracy (%)", "accuracy", percent),
    ("before fine-tuning (%)", "closed_form_accuracy", percent),
    ("softmax (%)", "softmax_accuracy", percent),
    ("ridge on its features (%)", "probe_accuracy", percent),
    ("lambda", "ridge_lambda", _mean("{:.4g}".format)),
    ("rounds", "rounds", _mean("{:,.4g}".format)),
    ("clients counted", "clients_counted", _mean("{:,.5g}".format)),
    ("sent up", "upload_bytes", _mean(format_bytes)),
    ("sent down", "download_bytes", _mean(format_bytes)),
    ("up by the paper's formula", "paper_upload_bytes", _mean(format_bytes)),
    ("down by the paper's formula", "paper_download_bytes", _mean(format_bytes)),
    ("FLOPs per client", "flops_per_client", _mean(format_flops)),
    ("time", "seconds", _mean(format_seconds)),
)


def outcome_table(results: Results) -> Table:
    """Return what each curve came to, as mean and spread over its seeds."""
    curves = results.curves()
    seeds = {len(runs) for runs in curves.values()}
    if results.reference:
        curves[results.reference.run.title.split(",")[0]] = [results.reference]
    columns: dict[str, list[str | None]] = {"": list(curves)}
    if len(seeds) > 1:
        columns["seeds"] = [str(len(runs)) for runs in curves.values()]
    for heading, key, form in _COLUMNS:
        values = [known_values(runs, key) for runs in curves.values()]
        if any(values):
            columns[heading] = [form(each) if each else None for each in values]
    title = f"At the end{_of_seeds(seeds)}"
    return Table(title, tuple(columns), list(zip(*columns.values(), strict=True)))


def paper_table(results: Results, paper: Paper) -> Table:
    """Return the paper's accuracies and ours side by side, also where one is missing.

    Its measures are those of the plot and those that the paper has.
    """
    experiment, curves = results.experiment, results.curves()
    names = dict.fromkeys(map(curve_of, experiment.runs))
    rows = [(paper.numbers.get(name, {}), curves.get(name, [])) for name in names]
    columns: dict[str, list[str | None]] = {"": list(names)}
    known = [key for theirs, _ in rows for key in theirs]
    for heading, key, form in _COLUMNS:
        if key not in (*experiment.plot.measures, *known):
            continue
        name = heading.removesuffix(" (%)")
        if key in known:
            columns[f"{name}, paper ({paper.dataset})"] = [
                f"{theirs[key]:.1f}" if key in theirs else None for theirs, _ in rows
            ]
        values = [known_values(ours, key) for _, ours in rows]
        columns[f"{name}, ours"] = [form(each) if each else None for each in values]
    title = "In percent, beside the paper"
    title += _of_seeds({len(runs) for runs in curves.values()})
    cells = list(zip(*columns.values(), strict=True))
    return Table(title, tuple(columns), cells, notes=paper.differences)


def _of_seeds(numbers: set[int]) -> str:
    """Return what a title says of means over some numbers of seeds."""
    if max(numbers, default=0) < 2:
        return ""
    seeds = f"{min(numbers)} seeds" if len(numbers) == 1 else "the seeds"
    return f", mean ± sample standard deviation of {seeds}"


def target_table(results: Results, goal: float, baseline: str) -> Table:
    """Return rounds, bytes and FLOPs to an accuracy, and how many times faster.

    They are means over the runs that reach it.
    """
    columns = ["", "runs that reach it"]
    for heading in ("rounds", "bytes", "FLOPs per client"):
        columns += [heading, "speed-up"]
    costs = {
        name: [cost for run in runs if (cost := to_reach(run, goal)) is not None]
        for name, runs in results.curves().items()
    }
    means = {name: np.mean(found, axis=0) for name, found in costs.items() if found}
    rows = []
    for name, runs in results.curves().items():
        cells: list[str | None] = [f"{len(costs[name])} of {len(runs)}"]
        for place, form in enumerate(("{:.1f}".format, format_bytes, format_flops)):
            mean = means[name][place] if name in means else None
            compared = baseline in means and mean
            cells += [
                None if mean is None else form(mean),
                f"{means[baseline][place] / mean:.3g}x" if compared else None,
            ]
        rows.append((name, *cells))
    title = f"To an accuracy of {100 * goal:g} %; speed-up relative to {baseline}"
    return Table(title, tuple(columns), rows)


def kernel_table(lines: Lines) -> Table:
    """Return the accuracy of random features and of the exact kernel."""
    rows = []
    for line in lines:
        dim = "exact kernel" if line["dim"] is None else f"{line['dim']:,}"
        rows.append((line["features"], dim, percent(line["accuracies"])))
    title = "Random features against exact kernel ridge regression on a subset"
    return Table(title, ("features", "D", "accuracy (%)"), rows)
