"""An experiment's pictures, as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from fed3r_app.runs.curves import picture_bytes
from fed3r_app.runs.report import format_bytes, format_flops
from simulation.runner.collect import (
    Finished,
    Results,
    average,
    group,
    known_values,
    standard_deviation,
)
from simulation.runner.experiment import curve_of

# Colours that people who see few colours tell apart, then the same ones dashed.
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7f3c8d", "#555555"),
)
_STYLES = [(color, style) for style in ("-", "--", ":", "-.") for color in _COLORS]
_LABELS = {
    "accuracy": "accuracy",
    "closed_form_accuracy": "before fine-tuning",
    "softmax_accuracy": "softmax",
    "probe_accuracy": "ridge on its features",
}
# The costs behind the accuracy in what is measured, and how to write their values.
_COSTS: tuple[tuple[str, Callable[[float], str] | None], ...] = (
    ("rounds", None),
    ("bytes sent, both ways", format_bytes),
    ("average FLOPs per client", format_flops),
)
_LOOK: dict[Any, Any] = {
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
# Beyond this ratio of the largest to the smallest value a scale is logarithmic.
_LOGARITHMIC = 30


@rc_context(_LOOK)
def draw_all(results: Results, form: str = "png") -> dict[str, bytes]:
    """Return the pictures that an experiment asks for and has data for, by file."""
    plot, drawn = results.experiment.plot, {}
    if "curves" in plot.figures and results.finished:
        drawn["curves"] = _curves(results)
    if "final" in plot.figures and results.finished:
        drawn["final"] = _along(results, plot.x) if plot.x else _bars(results)
    if "kernel" in plot.figures and results.lines:
        drawn["kernel"] = _kernel(results.lines)
    return {f"{name}.{form}": picture_bytes(drawn[name], form) for name in drawn}


def _curves(results: Results) -> Figure:
    """Draw the accuracy against rounds, bytes and FLOPs.

    One line for each curve with a band of one standard deviation over the seeds, one
    row of pictures for each value of the axis `panels`.
    """
    axis, panels = results.experiment.plot.panels, {"": results.curves()}
    if axis is not None:
        rows = group(results.finished, lambda each: each.run.labels[axis])
        panels = {
            title: group(runs, lambda each: curve_of(each.run, axis))
            for title, runs in rows.items()
        }
    figure = Figure((11, 3.4 * len(panels) + 0.6))
    grid = figure.subplots(len(panels), 3, squeeze=False, sharey=True)
    names = dict.fromkeys(name for curves in panels.values() for name in curves)
    styles = dict(zip(names, cycle(_STYLES)))
    for row, (title, curves) in zip(grid, panels.items(), strict=True):
        for place, axes in enumerate(row):
            _draw_panel(axes, curves, place, styles, results.reference)
        row[0].set_ylabel("accuracy")
        row[1].set_title(title, fontsize=10)
    _add_legend(figure, grid)
    return figure


def _draw_panel(
    axes: Axes,
    curves: Mapping[str, list[Finished]],
    place: int,
    styles: Mapping[str, tuple[str, str]],
    reference: Finished | None,
) -> None:
    """Draw all curves against the cost at a place."""
    smallest, largest = np.inf, 0.0
    for name, runs in curves.items():
        (mean, spread), (color, style) = average(runs), styles[name]
        if not len(mean):
            continue
        x, y, band = mean[:, 1 + place], mean[:, 0], spread[:, 0]
        smallest, largest = min(smallest, x[0]), max(largest, x[-1])
        marker = "." if len(x) <= 30 else ""
        axes.plot(x, y, style, marker=marker, color=color, label=name)
        if len(runs) > 1:
            axes.fill_between(x, y - band, y + band, color=color, alpha=0.15, lw=0)
    if reference and (level := reference.measure("accuracy")) is not None:
        name = next(iter(reference.run.labels.values()))
        axes.axhline(level, color="black", ls="--", lw=1, label=name)
    name, form = _COSTS[place]
    axes.set_xlabel(name)
    _percent(axes.yaxis)
    if form and largest > _LOGARITHMIC * smallest > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=form is None))
        axes.set_xlim(0, None)
    if form is not None:
        axes.xaxis.set_major_formatter(lambda x, _: form(x))


def _bars(results: Results) -> Figure:
    """Draw the last accuracies as a group of bars for each curve."""
    curves, measures = results.curves(), results.experiment.plot.measures
    figure = Figure((8, 0.5 + 0.34 * len(curves) * max(len(measures), 1.3)))
    axes = figure.subplots()
    height = 0.8 / len(measures)
    for place, (measure, color) in enumerate(zip(measures, cycle(_COLORS))):
        values = [known_values(runs, measure) for runs in curves.values()]
        y = np.arange(len(curves)) + (place - (len(measures) - 1) / 2) * height
        means = [float(np.mean(v)) if v else 0.0 for v in values]
        spread = [float(standard_deviation(v)) if v else 0.0 for v in values]
        label = _LABELS[measure]
        axes.barh(y, means, height * 0.9, xerr=spread, color=color, label=label)
        for where, mean, error in zip(y, means, spread, strict=True):
            text = f" {100 * mean:.1f}" if mean else " not measured"
            axes.text(mean + error, where, text, va="center", fontsize=8)
    axes.set_yticks(range(len(curves)), list(curves))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy")
    _percent(axes.xaxis)
    axes.grid(False)
    if len(measures) > 1:
        _add_legend(figure, np.array([axes]))
    return figure


def _along(results: Results, x: str) -> Figure:
    """Draw the last accuracies along an axis."""
    figure = Figure((6.4, 4.2))
    axes = figure.subplots()
    measures = results.experiment.plot.measures
    places = list(dict.fromkeys(each.run.labels[x] for each in results.finished))
    pairs = [(m, *curve) for m in measures for curve in results.curves(x).items()]
    for (measure, name, runs), (color, style) in zip(pairs, cycle(_STYLES)):
        groups = group(runs, lambda each: each.run.labels[x])
        known = {
            places.index(place): values
            for place in sorted(groups, key=places.index)
            if (values := known_values(groups[place], measure))
        }
        label = name if len(measures) == 1 else f"{name}: {_LABELS[measure]}"
        if known:
            _draw_means(axes, known, f"o{style}", color, label)
    axes.set_xticks(range(len(places)), [text.removeprefix(f"{x} ") for text in places])
    axes.set(xlabel=x, ylabel="accuracy")
    _percent(axes.yaxis)
    if len(pairs) > 1:
        axes.legend()
    return figure


def _kernel(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw random features against the exact kernel.

    Parameters
    ----------
    lines : sequence of mappings
        `features`, `dim` (None for the exact kernel) and `accuracies` over seeds.
    """
    figure = Figure((6.4, 4.2))
    axes = figure.subplots()
    names = dict.fromkeys(line["features"] for line in lines)
    for name, color in zip(names, cycle(_COLORS)):
        own = {e["dim"]: e["accuracies"] for e in lines if e["features"] == name}
        exact = own.pop(None, None)
        _draw_means(axes, own, "o-", color, f"random features, {name}")
        if exact is not None:
            level, label = float(np.mean(exact)), f"exact kernel, {name}"
            axes.axhline(level, ls="--", color=color, label=label)
    dims = list(dict.fromkeys(line["dim"] for line in lines if line["dim"] is not None))
    axes.set(xscale="log", xlabel="number of random features D", ylabel="accuracy")
    axes.set_xticks(dims, [f"{dim:,}" for dim in dims], minor=False)
    axes.minorticks_off()
    _percent(axes.yaxis)
    axes.legend()
    return figure


def _draw_means(
    axes: Axes, values: Mapping[Any, Sequence[float]], fmt: str, color: str, label: str
) -> None:
    """Draw means and standard deviations of the values at each x."""
    means = [float(np.mean(each)) for each in values.values()]
    spread = [float(standard_deviation(each)) for each in values.values()]
    x = list(values)
    axes.errorbar(x, means, spread, fmt=fmt, color=color, capsize=3, label=label)


def _percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def _add_legend(figure: Figure, grid: Any) -> None:
    """Put the names of all curves below the pictures, once each."""
    found: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    widest = max(map(len, found), default=1)
    columns = max(1, min(len(found), 5, 150 // (widest + 8)))
    names, handles = found.keys(), found.values()
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
