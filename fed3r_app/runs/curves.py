"""The picture of a run: accuracy against rounds, uploaded bytes and FLOPs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.files import write_atomically
from fed3r_app.runs.report import (
    Values,
    format_bytes,
    format_flops,
    format_percent,
    number_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _GREY = "#1f6fb4", "#8a8a8a"


def import_matplotlib() -> None:
    """Load what ``plot_curves`` needs, ahead of time."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401


def plot_curves(metrics: Sequence[Values], path: Path, title: str) -> None:
    """Write a PNG of the accuracy against rounds, uploaded bytes and FLOPs.

    ``metrics`` are the lines of metrics.jsonl; bytes and FLOPs are those up to that
    round. Lines without an accuracy are passed over.
    """
    # The object interface: no global state, no display, safe in any thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    measured = [line for line in metrics if number_of(line, "accuracy") is not None]
    if measured:
        _draw_panels(figure, measured)
    else:
        figure.text(0.5, 0.5, "The accuracy was not measured.", ha="center")
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_atomically(path, image.getvalue())


def _draw_panels(figure: Figure, metrics: Sequence[Values]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    rounds, sizes, flops = figure.subplots(1, 3, sharey=True)
    _draw_accuracy(rounds, metrics, "round", _BLUE)
    _mark_last(rounds, metrics)
    rounds.set(xlabel="rounds", ylabel="accuracy", xlim=(0, None))
    rounds.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    best = max(number_of(line, "accuracy") or 0.0 for line in metrics)
    rounds.set_ylim(0, 1.1 * best or 1.0)
    rounds.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    rounds.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    _draw_bytes(sizes, metrics)
    _draw_accuracy(flops, metrics, "flops_per_client", _BLUE)
    flops.set(xlabel="average FLOPs per client", xlim=(0, None))
    flops.xaxis.set_major_locator(MaxNLocator(5))
    flops.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_flops(x)))


def _draw_bytes(axes: Axes, metrics: Sequence[Values]) -> None:
    """Draw the accuracy against the bytes sent, and against those of the paper."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    sent = _draw_accuracy(axes, metrics, "upload_bytes", _BLUE, "as sent")
    dense = _draw_accuracy(
        axes, metrics, "paper_upload_bytes", _GREY, "as the paper's dense matrices"
    )
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
    # Above the panel, where it can't cover a curve.
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=9, frameon=False
    )


def _draw_accuracy(
    axes: Axes, metrics: Sequence[Values], key: str, color: str, label: str = ""
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
