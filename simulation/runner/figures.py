"""An experiment's pictures, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from fed3r_app.runs.report import format_bytes, format_flops
from simulation.runner.collect import Finished, Results, average, deviation
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
        for axes, kind in zip(row, ("rounds", "bytes", "flops"), strict=True):
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
    for name, color in zip(names, cycle(_COLORS)):
        own = [line for line in lines if line["features"] == name]
        drawn = [line for line in own if line["dim"] is not None]
        means = np.array([np.mean(line["accuracies"]) for line in drawn])
        spread = np.array([deviation(line["accuracies"]) for line in drawn])
        dims = [line["dim"] for line in drawn]
        label = f"random features, {name}"
        axes.errorbar(
            dims, means, spread, fmt="o-", capsize=3, color=color, label=label
        )
        for line in own:
            if line["dim"] is None:
                level = float(np.mean(line["accuracies"]))
                axes.axhline(level, ls="--", color=color, label=f"exact kernel, {name}")
    axes.set(xscale="log", xlabel="number of random features D", ylabel="accuracy")
    axes.set_xticks(dims, [f"{dim:,}" for dim in dims], minor=False)
    axes.minorticks_off()
    _finish_axes(axes)
    axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def _panels(results: Results) -> dict[str, dict[str, list[Finished]]]:
    """Return the curves of each row of pictures."""
    axis = results.experiment.plot.panels
    if axis is None:
        return {"": results.curves()}
    panels: dict[str, dict[str, list[Finished]]] = {}
    for each in results.finished:
        curves = panels.setdefault(each.run.labels[axis], {})
        curves.setdefault(curve_of(each.run, axis), []).append(each)
    return panels


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

    names = {
        "rounds": "rounds",
        "bytes": "bytes sent, both ways",
        "flops": "average FLOPs per client",
    }
    axes.set_xlabel(names[kind])
    if axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=kind == "rounds"))
        axes.set_xlim(0, None)
    if kind != "rounds":
        form = format_bytes if kind == "bytes" else format_flops
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: form(x)))


def _bars(results: Results) -> bytes:
    """Return a PNG with a group of bars for each curve."""
    curves, measures = results.curves(), results.experiment.plot.measures
    figure = _figure(8, 0.5 + 0.34 * len(curves) * max(len(measures), 1.3))
    axes = figure.subplots()
    height = 0.8 / len(measures)
    for place, (measure, color) in enumerate(zip(measures, cycle(_COLORS))):
        values = [_values(runs, measure) for runs in curves.values()]
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
    lines: dict[str, dict[str, list[Finished]]] = {}
    places = list(dict.fromkeys(each.run.labels[x] for each in results.finished))
    for each in results.finished:
        line = lines.setdefault(curve_of(each.run, x), {})
        line.setdefault(each.run.labels[x], []).append(each)
    pairs = [(name, measure) for measure in measures for name in lines]
    styles = _styles([f"{name}{measure}" for name, measure in pairs])
    for name, measure in pairs:
        known = [
            place for place in places if _values(lines[name].get(place, []), measure)
        ]
        values = [_values(lines[name][place], measure) for place in known]
        color, style = styles[f"{name}{measure}"]
        label = name if len(measures) == 1 else f"{name}: {_LABELS[measure]}"
        axes.errorbar(
            [places.index(place) for place in known],
            [float(np.mean(v)) for v in values],
            [float(deviation(v)) for v in values],
            fmt=f"o{style}",
            color=color,
            capsize=3,
            label=label,
        )
    axes.set_xticks(range(len(places)), [text.removeprefix(f"{x} ") for text in places])
    axes.set(xlabel=x, ylabel="accuracy")
    _finish_axes(axes)
    if len(pairs) > 1:
        axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def _values(runs: list[Finished], measure: str) -> list[float]:
    return [value for run in runs if (value := run.measure(measure)) is not None]


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
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )


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
