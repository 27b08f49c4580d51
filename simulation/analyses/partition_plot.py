"""A federation as a picture: sizes of the clients, and who has which class."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulation.analyses.partition_stats import Federation, describe, load_federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A heat map with more rows or columns than this has no room for them.
_MOST_CLIENTS, _MOST_CLASSES = 150, 300
_COLOR = "#1f6fb4"


def run(arguments: argparse.Namespace) -> int:
    """Print and draw a federation; return the exit code."""
    federation = load_federation(
        arguments.name,
        arguments.data_path,
        arguments.partition,
        arguments.alpha,
        arguments.clients,
        arguments.seed,
    )
    print(describe(federation), flush=True)
    # A file named after the federation and its split.
    name = re.sub(r"[^\w.]+", "-", federation.title.removesuffix(".csv"))
    path = arguments.output or Path("results", "federations", f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(federation, path)
    print(f"Picture: {path}")
    return 0


def plot(federation: Federation, path: Path) -> None:
    """Draw the sizes and, where classes are known, the label heat map."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = 2 if federation.num_classes else 1
    figure = Figure(figsize=(1 + 5.5 * columns, 4.5), layout="constrained")
    figure.suptitle(federation.title)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    _draw_sizes(panels[0], federation.sizes)
    if federation.num_classes:
        _draw_labels(figure, panels[1], federation)
    for axes in panels:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=110)


def _draw_sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    """Draw the sizes from the largest client to the smallest."""
    ordered = np.sort(sizes)[::-1]
    axes.stairs(ordered, fill=True, color=_COLOR)
    axes.axhline(float(sizes.mean()), color="black", linestyle=":", label="mean")
    if ordered[0] > 50 * max(float(np.median(sizes)), 1):
        axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set(xlim=(0, len(ordered)), xlabel="clients, by size", ylabel="images")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def _draw_labels(figure: Figure, axes: Axes, federation: Federation) -> None:
    """Draw how many images of each class each client has, largest client on top."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    order = np.argsort(-federation.sizes, kind="stable")
    # Rows evenly spaced among the clients; neighbouring columns added up.
    chosen = order[_cuts(len(order) - 1, min(_MOST_CLIENTS, len(order)))]
    C = federation.num_classes
    starts = np.unique(_cuts(C, min(_MOST_CLASSES, C) + 1)[:-1])
    counts = np.add.reduceat(federation.label_counts(chosen), starts, axis=1)
    # Zeros are masked: white, not the colour of one image.
    shown = np.ma.masked_equal(counts, 0)
    norm = LogNorm(1, max(int(counts.max()), 2))
    image = axes.imshow(
        shown, aspect="auto", cmap="viridis", norm=norm, interpolation="nearest"
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label="images")
    some = len(chosen) < len(order)
    axes.set_ylabel(f"{len(chosen)} of the clients" if some else "clients, by size")
    axes.set_xlabel("groups of classes" if len(starts) < C else "classes")


def _cuts(last: int, number: int) -> NDArray[np.int64]:
    """Return so many whole numbers from 0 to the last, evenly spaced."""
    return np.linspace(0, last, number).astype(np.int64)
