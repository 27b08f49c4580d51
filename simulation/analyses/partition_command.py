"""The command that prints and draws a partition."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fed3r_app.data.partition import SCHEMES
from simulation.analyses.partition_plot import plot
from simulation.analyses.partition_stats import describe, load_federation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a data set (digits, cifar100, inaturalist-users-120k, synthetic …) "
        "or a CSV with the columns client, num_images",
    )
    parser.add_argument("--data-path", default="", help="where the data set lies")
    parser.add_argument(
        "--partition",
        choices=SCHEMES,
        help="default: natural where the data set has clients, else by-class",
    )
    parser.add_argument(
        "--alpha", type=float, default=0.1, help="of dirichlet (default: 0.1)"
    )
    parser.add_argument(
        "--clients", type=int, help="default: the natural ones, else one per class"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    parser.add_argument(
        "--output", type=Path, help="PNG to write (default: results/federations/NAME)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print and draw the federation; return the exit code."""
    federation = load_federation(
        arguments.name,
        arguments.data_path,
        arguments.partition,
        arguments.alpha,
        arguments.clients,
        arguments.seed,
    )
    print(describe(federation), flush=True)
    path = arguments.output or _default_path(federation.title)
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(federation, path)
    print(f"Picture: {path}")
    return 0


def _default_path(title: str) -> Path:
    """Return a file named after the federation and its split."""
    name = re.sub(r"[^\w.]+", "-", title.removesuffix(".csv"))
    return Path("results", "federations", f"{name}.png")
