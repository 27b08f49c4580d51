"""A closed-form start against a random one, for every optimiser and variant.

Fine-tunes the default data from both starts, split by class and by Dirichlet(0.1), and
draws what the first rounds are worth: ``python -m simulation compare-starts``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.runs.directory import RunDirectory
from simulation.engines.inline import default_run_config, run_inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPLITS = {"by-class": "one class per client", "dirichlet": "Dirichlet(0.1)"}
_OPTIMIZERS = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "scaffold": "Scaffold"}
_VARIANTS = {
    ("fed3r", "lp"): ("Fed3R start, lp", "#1f6fb4", "-"),
    ("fed3r", "feat"): ("Fed3R start, feat", "#2a9d5c", "-"),
    ("fed3r", "full"): ("Fed3R start, full", "#b4541f", "-"),
    ("none", "lp"): ("random start, lp", "#1f6fb4", ":"),
    ("none", "full"): ("random start, full", "#b4541f", ":"),
}
_CLIENTS = 10
_ROUNDS = 10


@dataclass(frozen=True)
class Cell:
    """One fine-tuning of the comparison."""

    split: str
    optimizer: str
    method: str
    finetune: str

    @property
    def name(self) -> str:
        """Name of its run."""
        return f"{self.split}-{self.optimizer}-{self.method}-{self.finetune}"

    def settings(self, output_dir: Path) -> dict[str, str | int | float | bool]:
        """Return what differs from the default run config."""
        return {
            "partition": self.split,
            "optimizer": self.optimizer,
            "server-momentum": 0.9 if self.optimizer == "fedavgm" else 0.0,
            "method": self.method,
            "finetune": self.finetune,
            "rounds": _ROUNDS,
            "clients-per-round": 5,
            "image-size": 64,
            "eval-every": 1,
            "output-dir": str(output_dir),
            "run-name": self.name,
        }


def compare_starts(pyproject: Path, output_dir: Path) -> None:
    """Run what has not been run yet; write the table and the picture."""
    # Imported here: they bring torch along.
    from fed3r_app.client_app import app as client_app
    from fed3r_app.server_app import app as server_app

    defaults = default_run_config(pyproject)
    for number, cell in enumerate(cells(), start=1):
        print(f"{number} of {len(list(cells()))}: {cell.name}", flush=True)
        directory = RunDirectory(output_dir / cell.name)
        if not directory.summary_path.exists():
            shutil.rmtree(directory.path, ignore_errors=True)  # it was interrupted
            config = {**defaults, **cell.settings(output_dir)}
            run_inline(server_app, client_app, _CLIENTS, config)
    accuracies = {cell: read_accuracies(output_dir, cell) for cell in cells()}
    print(table(accuracies))
    plot(accuracies, output_dir / "starts.png")
    print(f"Picture: {output_dir / 'starts.png'}")


def cells() -> Iterator[Cell]:
    """Yield every cell, those that train no backbone first."""
    combinations = [
        Cell(split, optimizer, method, finetune)
        for split in _SPLITS
        for optimizer in _OPTIMIZERS
        for method, finetune in _VARIANTS
    ]
    yield from sorted(combinations, key=lambda cell: cell.finetune != "lp")


def read_accuracies(output_dir: Path, cell: Cell) -> list[float]:
    """Return the accuracy after each round of fine-tuning."""
    lines = RunDirectory(output_dir / cell.name).read_metrics()
    return [
        float(str(line["accuracy"]))
        for line in lines
        if line.get("phase") == "finetune"
    ]


def closed_form_accuracy(output_dir: Path, cell: Cell) -> float | None:
    """Return the accuracy that the fine-tuning started from."""
    summary = RunDirectory(output_dir / cell.name).read_summary()
    value = summary.get("closed_form_accuracy")
    return None if value is None else float(str(value))


def table(accuracies: Mapping[Cell, list[float]]) -> str:
    """Return the mean and the last accuracy of each cell, as lines of Markdown."""
    lines = ["| split | optimiser | start | trains | mean of rounds | last round |"]
    lines.append("|---|---|---|---|---|---|")
    for cell, values in sorted(accuracies.items(), key=lambda item: item[0].name):
        start = "Fed3R" if cell.method == "fed3r" else "random"
        mean, last = sum(values) / len(values), values[-1]
        lines.append(
            f"| {_SPLITS[cell.split]} | {_OPTIMIZERS[cell.optimizer]} | {start} | "
            f"{cell.finetune} | {mean:.1%} | {last:.1%} |"
        )
    return "\n".join(lines)


def plot(accuracies: Mapping[Cell, list[float]], path: Path) -> None:
    """Draw accuracy against rounds, a panel for each split and optimiser."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(len(_SPLITS), len(_OPTIMIZERS), sharex=True, sharey=True)
    for row, split in zip(panels, _SPLITS, strict=True):
        for axes, optimizer in zip(row, _OPTIMIZERS, strict=True):
            _draw(axes, split, optimizer, accuracies)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=110)


def _draw(
    axes: Axes, split: str, optimizer: str, accuracies: Mapping[Cell, list[float]]
) -> None:
    for (method, finetune), (label, color, style) in _VARIANTS.items():
        values = accuracies[Cell(split, optimizer, method, finetune)]
        rounds = range(1, len(values) + 1)
        percent = [100 * value for value in values]
        axes.plot(rounds, percent, style, color=color, label=label, marker=".")
    axes.set_title(f"{_OPTIMIZERS[optimizer]}, {_SPLITS[split]}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.set_ylim(0, 102)
    axes.set_xlabel("round of fine-tuning")
    axes.set_ylabel("accuracy (%)")
    axes.label_outer()
