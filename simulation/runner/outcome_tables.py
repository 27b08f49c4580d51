"""An experiment's tables: what each curve came to, and what a target took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fed3r_app.runs.report import format_bytes, format_flops, format_seconds
from simulation.runner.collect import (
    Finished,
    Results,
    deviation,
    known_values,
    to_reach,
)
from simulation.runner.experiment import Target
from simulation.tables import Table

_NONE = "-"


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation of shares in percent."""
    text = f"{100 * np.mean(values):.2f}"
    return f"{text} ± {100 * deviation(values):.2f}" if len(values) > 1 else text


def _mean(form: Callable[[float], str]) -> Callable[[Sequence[float]], str]:
    return lambda values: form(float(np.mean(values)))


# Heading, key of the summary, how to write its values; empty columns are left out.
_COLUMNS: tuple[tuple[str, str, Callable[[Sequence[float]], str]], ...] = (
    ("accuracy (%)", "accuracy", percent),
    ("before fine-tuning (%)", "closed_form_accuracy", percent),
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
    columns = [
        (heading, [_cell(runs, key, form) for runs in curves.values()])
        for heading, key, form in _COLUMNS
    ]
    known = [(heading, cells) for heading, cells in columns if set(cells) - {_NONE}]
    if len(seeds) > 1:
        known.insert(0, ("seeds", [str(len(runs)) for runs in curves.values()]))
    rows = list(zip(curves, *(cells for _, cells in known), strict=True))
    headings = tuple(heading for heading, _ in known)
    return Table(f"At the end{_spread_of(seeds)}", ("", *headings), rows)


def _spread_of(seeds: set[int]) -> str:
    """Return what ± means in a table of curves with these numbers of seeds."""
    if max(seeds, default=0) < 2:
        return ""
    number = f"{min(seeds)} seeds" if len(seeds) == 1 else "the seeds"
    return f", mean ± sample standard deviation of {number}"


def _cell(
    runs: list[Finished], key: str, form: Callable[[Sequence[float]], str]
) -> str:
    values = known_values(runs, key)
    return form(values) if values else _NONE


def target_tables(results: Results, target: Target) -> list[Table]:
    """Return rounds, bytes and FLOPs to each target, and how many times faster."""
    return [_target_table(results, goal, target.baseline) for goal in target.accuracies]


def _target_table(results: Results, goal: float, baseline: str) -> Table:
    costs = {name: _costs(runs, goal) for name, runs in results.curves().items()}
    base = costs.get(baseline, [])
    columns = ["", "runs that reach it"]
    for heading in ("rounds", "bytes", "FLOPs per client"):
        columns += [heading, "speed-up"]
    rows = []
    for name, runs in results.curves().items():
        reached = sum(to_reach(run, goal) is not None for run in runs)
        cells = [f"{reached} of {len(runs)}"]
        for place, form in enumerate(("{:.1f}".format, format_bytes, format_flops)):
            mean = costs[name][place] if costs[name] else None
            cells.append(_NONE if mean is None else form(mean))
            cells.append(f"{base[place] / mean:.3g}x" if base and mean else _NONE)
        rows.append((name, *cells))
    title = f"To an accuracy of {100 * goal:g} %; speed-up relative to {baseline}"
    return Table(title, tuple(columns), rows)


def _costs(runs: list[Finished], goal: float) -> list[float]:
    """Return the mean costs of the runs that reach a goal; none where none does."""
    found = [cost for run in runs if (cost := to_reach(run, goal)) is not None]
    return np.mean(found, axis=0).tolist() if found else []
