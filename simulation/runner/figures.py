"""An experiment's pictures, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from fed3r_app.runs.report import format_bytes, format_flops
from simulation.runner.collect import (
    Finished,
    Results,
    average,
    deviation,
    group,
    known_values,
)
from simulation.runner.experiment import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people who see few colours tell apart, then the same ones dashed.
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7f3c8d", "#555555"),
)
_STYLES = ("-", "--", ":", "-.")
_LABELS = {
    "accuracy": "accuracy",
    "closed_form_accuracy": "before fine-tuning",
    "probe_accuracy": "ridge on its features",
}
# Of each cost: its name, and how to write its values.
_COSTS: dict[str, tuple[str, Callable[[float], str] | None]] = {
    "rounds": ("rounds", None),
    "bytes": ("bytes sent, both ways", format_bytes),
    "flops": ("average FLOPs per client", format_flops),
}
# Beyond this ratio of the largest to the smallest value a scale is logarithmic.
_LOGARITHMIC = 30


def draw_curves(results: Results) -> bytes:
    """Return a PNG of the accuracy against rounds, bytes and FLOPs.

    One line for each curve with a band of one standard deviation over the seeds, one
    row of pictures for each value of the axis `panels`.
    """
    panels = _panels(results)
    figure = _figure(11, 3.4 * len(panels) + 0.6)
    grid = figure.subplots(len(panels), 3, squeeze=False, sharey=True)
    styles = _styles([curve for runs in panels.values() for curve in runs])
    for row, (title, curves) in zip(grid, panels.items(), strict=True):
        for axes, kind in zip(row, _COSTS, strict=True):
            _draw_panel(axes, curves, kind, styles, results.reference)
        row[0].set_ylabel("accuracy")
        row[1].set_title(title, fontsize=10)
    _add_legend(figure, grid)
    return _png(figure)


def draw_final(results: Results) -> bytes:
    """Return a PNG of the last accuracies, as bars or along an axis."""
    if results.experiment.plot.x is not None:
        return _along(results, results.experiment.plot.x)
    return _bars(results)


def draw_kernel(lines: Sequence[dict[str, Any]]) -> bytes:
    """Return a PNG of random features against the exact kernel.

    Parameters
    ----------
    lines : sequence of dict
        `features`, `dim` (None for the exact kernel) and `accuracies` over seeds.
    """
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    names = list(dict.fromkeys(line["features"] for line in lines))
    drawn = [line for line in lines if line["dim"] is not None]
    for name, color in zip(names, cycle(_COLORS)):
        own = {
            each["dim"]: each["accuracies"]
            for each in drawn
            if each["features"] == name
        }
        label = f"random features, {name}"
        _draw_means(axes, own.keys(), own.values(), "o-", color, label)
        for line in lines:
            if line["dim"] is None and line["features"] == name:
                level = float(np.mean(line["accuracies"]))
                axes.axhline(level, ls="--", color=color, label=f"exact kernel, {name}")
    dims = list(dict.fromkeys(line["dim"] for line in drawn))
    axes.set(xscale="log", xlabel="number of random features D", ylabel="accuracy")
    axes.set_xticks(dims, [f"{dim:,}" for dim in dims], minor=False)
    axes.minorticks_off()
    _finish_axes(axes)
    axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def _draw_means(
    axes: Axes,
    x: Iterable[float],
    values: Iterable[Sequence[float]],
    fmt: str,
    color: str,
    label: str,
) -> None:
    """Draw means and standard deviations of the values at each x."""
    means, spread = zip(*((np.mean(v), deviation(v)) for v in values), strict=True)
    axes.errorbar(list(x), means, spread, fmt=fmt, color=color, capsize=3, label=label)


def _panels(results: Results) -> dict[str, dict[str, list[Finished]]]:
    """Return the curves of each row of pictures."""
    axis = results.experiment.plot.panels
    if axis is None:
        return {"": results.curves()}
    rows = group(results.finished, lambda each: each.run.labels[axis])
    return {
        title: group(runs, lambda each: curve_of(each.run, axis))
        for title, runs in rows.items()
    }


def _styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and dash of each curve."""
    pairs = [(color, style) for style in _STYLES for color in _COLORS]
    return dict(zip(dict.fromkeys(names), cycle(pairs)))


def _draw_panel(
    axes: Axes,
    curves: dict[str, list[Finished]],
    kind: str,
    styles: dict[str, tuple[str, str]],
    reference: Finished | None,
) -> None:
    """Draw all curves against one cost."""
    smallest, largest = np.inf, 0.0
    for name, runs in curves.items():
        curve, (color, style) = average(runs), styles[name]
        if curve is None:
            continue
        x = getattr(curve, kind)
        smallest, largest = min(smallest, x[0]), max(largest, x[-1])
        marker = "." if len(x) <= 30 else ""
        axes.plot(x, curve.accuracy, style, marker=marker, color=color, label=name)
        if len(runs) > 1:
            low, high = curve.accuracy - curve.spread, curve.accuracy + curve.spread
            axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
    if reference and (level := reference.measure("accuracy")) is not None:
        name = next(iter(reference.run.labels.values()))
        axes.axhline(level, color="black", ls="--", lw=1, label=name)
    if kind != "rounds" and largest > _LOGARITHMIC * smallest > 0:
        axes.set_xscale("log")
    _label_costs(axes, kind)
    _finish_axes(axes)


def _label_costs(axes: Axes, kind: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    name, form = _COSTS[kind]
    axes.set_xlabel(name)
    if axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=form is None))
        axes.set_xlim(0, None)
    if form is not None:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: form(x)))


def _bars(results: Results) -> bytes:
    """Return a PNG with a group of bars for each curve."""
    curves, measures = results.curves(), results.experiment.plot.measures
    figure = _figure(8, 0.5 + 0.34 * len(curves) * max(len(measures), 1.3))
    axes = figure.subplots()
    height = 0.8 / len(measures)
    for place, (measure, color) in enumerate(zip(measures, cycle(_COLORS))):
        values = [known_values(runs, measure) for runs in curves.values()]
        y = np.arange(len(curves)) + (place - (len(measures) - 1) / 2) * height
        means = [float(np.mean(v)) if v else 0.0 for v in values]
        spread = [float(deviation(v)) if v else 0.0 for v in values]
        label = _LABELS[measure]
        axes.barh(y, means, height * 0.9, xerr=spread, color=color, label=label)
        for where, mean, error in zip(y, means, spread, strict=True):
            text = f" {100 * mean:.1f}" if mean else " not measured"
            axes.text(mean + error, where, text, va="center", fontsize=8)
    axes.set_yticks(range(len(curves)), list(curves))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy")
    _percent(axes.xaxis)
    axes.spines[["top", "right"]].set_visible(False)
    if len(measures) > 1:
        _add_legend(figure, np.array([[axes]]))
    return _png(figure)


def _along(results: Results, x: str) -> bytes:
    """Return a PNG of the last accuracies along an axis."""
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    measures = results.experiment.plot.measures
    places = list(dict.fromkeys(each.run.labels[x] for each in results.finished))
    pairs = [
        (name, runs, m) for m in measures for name, runs in results.curves(x).items()
    ]
    styles = _styles([f"{name}{measure}" for name, _, measure in pairs])
    for name, runs, measure in pairs:
        groups = group(runs, lambda each: each.run.labels[x])
        known = {
            places.index(place): values
            for place in sorted(groups, key=places.index)
            if (values := known_values(groups[place], measure))
        }
        color, style = styles[f"{name}{measure}"]
        label = name if len(measures) == 1 else f"{name}: {_LABELS[measure]}"
        if known:
            _draw_means(axes, known.keys(), known.values(), f"o{style}", color, label)
    axes.set_xticks(range(len(places)), [text.removeprefix(f"{x} ") for text in places])
    axes.set(xlabel=x, ylabel="accuracy")
    _finish_axes(axes)
    if len(pairs) > 1:
        axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def _finish_axes(axes: Axes) -> None:
    _percent(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, symbol=" %"))


def _add_legend(figure: Figure, grid: Any) -> None:
    """Put the names of all curves below the pictures, once each."""
    found: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    widest = max((len(label) for label in found), default=1)
    columns = max(1, min(len(found), 5, 150 // (widest + 8)))
    style = {"ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(found.values(), found.keys(), loc="outside lower center", **style)


def _figure(width: float, height: float) -> Figure:
    # The object interface: no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    image = io.BytesIO()
    # Without the name of the program, so that the same numbers are the same file.
    figure.savefig(image, format="png", metadata={"Software": None})
    return image.getvalue()
