"""The picture of a run: accuracy against rounds, uploaded bytes and FLOPs.

The curve is that of the server's test images, where it has any. What the clients
measured, at the end, is one point.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fed3r_app.files import write_atomically
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.report import (
    Values,
    format_bytes,
    format_flops,
    format_percent,
    number_of,
)
from fed3r_app.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _GREY, _RED = "#1f6fb4", "#8a8a8a", "#c2410c"
# Of a legend: above its panel, where it can't cover a curve.
_ABOVE: dict[str, Any] = {
    **{"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2},
    **{"fontsize": 9, "frameon": False},
}
# Without dates and names of programs.
_METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def import_matplotlib() -> None:
    """Load what ``plot_curves`` needs, ahead of time."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def plot_run(run: RunDirectory, path: Path) -> None:
    """Write the picture of a finished run, as PNG, SVG or PDF by the path's ending."""
    summary = run.read_summary()
    what = f"{summary.get('method')} on {summary.get('dataset')}"
    clients = plural(int(number_of(summary, "clients") or 0), "client")
    title = f"{what}, {clients}"
    plot_curves(run.read_metrics(), path, title, summary)


def plot_curves(
    metrics: Sequence[Values], path: Path, title: str, summary: Values | None = None
) -> None:
    """Write the picture of a run, as PNG, SVG or PDF by the ending of the path.

    ``metrics`` are the lines of metrics.jsonl; bytes and FLOPs are those up to that
    round. Lines without an accuracy are passed over. What the clients measured is in
    the ``summary``.
    """
    # The object interface: no global state, no display, safe in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    form = path.suffix.removeprefix(".").lower()
    if form not in _METADATA:
        raise ValueError(
            f"The name of a picture must end with .{', .'.join(_METADATA)}, got "
            f"{path.name!r}."
        )
    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    curve = [line for line in metrics if number_of(line, "accuracy") is not None]
    point, where = _at_clients(summary or {})
    if curve or point:
        _draw_panels(figure, curve, point, where)
    else:
        figure.text(0.5, 0.5, "The accuracy was not measured.", ha="center")
    write_atomically(path, picture_bytes(figure, form))


def picture_bytes(figure: Figure, form: str) -> bytes:
    """Return a figure as PNG, SVG or PDF; the same numbers give the same bytes."""
    from matplotlib import rc_context

    image = io.BytesIO()
    with rc_context({"svg.hashsalt": "fed3r"}):
        figure.savefig(image, format=form, metadata=_METADATA[form])
    return image.getvalue()


def _at_clients(summary: Values) -> tuple[list[Values], str]:
    """Return what the clients measured as a line of metrics, and on which images."""
    accuracy = number_of(summary, "client_accuracy")
    if accuracy is None:
        return [], ""
    which = "test" if summary.get("client_test_images") else "training"
    line = {**summary, "accuracy": accuracy, "round": summary.get("rounds")}
    return [line], f"on the clients' {which} images"


def _draw_panels(
    figure: Figure, curve: Sequence[Values], point: Sequence[Values], where: str
) -> None:
    """Draw a curve and a point in three panels; one of the two may be missing."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    rounds, sizes, flops = figure.subplots(1, 3, sharey=True)
    main, beside = (curve, point) if curve else (point, [])
    _draw_accuracy(rounds, main, "round", _BLUE, "" if curve else where)
    _mark_last(rounds, main)
    _draw_accuracy(flops, main, "flops_per_client", _BLUE)
    for line in beside:
        label = f"{where}: {format_percent(number_of(line, 'accuracy') or 0.0)}"
        _draw_accuracy(rounds, beside, "round", _RED, label)
        _draw_accuracy(flops, beside, "flops_per_client", _RED)
    _draw_bytes(sizes, main, beside)
    if point:
        rounds.legend(**_ABOVE)
    rounds.set(xlabel="rounds", ylabel="accuracy", xlim=(0, None))
    rounds.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    best = max(number_of(line, "accuracy") or 0.0 for line in (*main, *beside))
    rounds.set_ylim(0, 1.1 * best or 1.0)
    rounds.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    rounds.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    flops.set(xlabel="average FLOPs per client", xlim=(0, None))
    flops.xaxis.set_major_locator(MaxNLocator(5))
    flops.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_flops(x)))


def _draw_bytes(
    axes: Axes, metrics: Sequence[Values], beside: Sequence[Values]
) -> None:
    """Draw the accuracy against the bytes sent, and against those of the paper."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    sent = _draw_accuracy(axes, metrics, "upload_bytes", _BLUE, "as sent")
    dense = _draw_accuracy(
        axes, metrics, "paper_upload_bytes", _GREY, "as the paper's dense matrices"
    )
    _draw_accuracy(axes, beside, "upload_bytes", _RED)
    axes.set_xlabel("bytes uploaded by all clients")
    values = [value for value in (*sent, *dense) if value > 0]
    # Orders of magnitude apart, the smaller values would stick to the axis.
    if values and max(values) > 30 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x)))
    axes.legend(**_ABOVE)


def _draw_accuracy(
    axes: Axes,
    metrics: Sequence[Values],
    key: str,
    color: str,
    label: str = "",
) -> list[float]:
    """Draw the accuracy against a quantity, and return the quantity's values."""
    lines = [line for line in metrics if number_of(line, key) is not None]
    x = [number_of(line, key) or 0.0 for line in lines]
    y = [number_of(line, "accuracy") or 0.0 for line in lines]
    # Few points are shown one by one; a single point would have no line at all.
    marker = "o" if len(x) <= 30 else ""
    axes.plot(x, y, marker=marker, markersize=4, color=color, label=label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return x


def _mark_last(axes: Axes, metrics: Sequence[Values]) -> None:
    """Write the last accuracy above its point."""
    x, y = number_of(metrics[-1], "round"), number_of(metrics[-1], "accuracy")
    if x is not None and y is not None:
        text, above = format_percent(y), (0, 6)
        axes.annotate(
            text, (x, y), above, textcoords="offset points", ha="right", color=_BLUE
        )
