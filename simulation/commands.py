"""The commands of ``fed3r experiments`` and ``fed3r bench``: names, help and options.

What they do is imported when it is called: a parser is made without torch.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

Commands = argparse._SubParsersAction  # what add_subparsers() returns
BENCHMARKS = (
    *("upload", "server", "solve", "extract", "engine", "engines"),
    *("reference", "scale", "federation", "privacy", "secagg"),
)
_ON_EXPERIMENTS = {
    "run": "run experiments: what is done is skipped, what was interrupted is resumed",
    "list": "list the experiments and how much of each is done",
    "show": "show an experiment's runs and settings without running anything",
    "table": "print an experiment's tables",
    "plot": "draw an experiment's pictures and write its report again",
}


def add_experiments(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands on experiments, federations and coupons to a parser."""
    for name, text in _ON_EXPERIMENTS.items():
        add = _add(commands, name, text, f"runner.commands:{name}_command")
        if name != "list":
            note = "a name as `list` shows, a pattern such as '*-digits', or a file"
            add("names", nargs="+", metavar="EXPERIMENT", help=note)
        add("--data-path", default="", metavar="DIR", help="folder of the data set")
        note = "folder for all results (default: results/experiments)"
        add("--output", type=Path, metavar="DIR", help=note)
        if name == "run":
            note = "inline: in worker processes; flower: `flwr run` on Ray"
            add("--engine", choices=("inline", "flower"), default="inline", help=note)
            note = "runs at a time; the cores are shared among them (default: up to 4)"
            add("--jobs", type=int, default=0, metavar="N", help=note)
        elif name == "plot":
            add("--to", type=Path, metavar="DIR", help="also copy the pictures there")
            note = "of the pictures; the report has PNG (default: png)"
            add("--format", choices=("png", "svg", "pdf"), default="png", help=note)
        elif name == "table":
            add("--markdown", action="store_true", help="as Markdown")
    _add_federation(commands)
    _add_coupons(commands)


def add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command that runs benchmarks to a parser."""
    text = "benchmarks: tables and results/bench/*.json"
    add = _add(commands, "bench", text, "bench.command:run")
    note = f"which benchmarks, of: {', '.join(BENCHMARKS)}; all if none is named"
    add("names", nargs="*", metavar="NAME", help=note)
    add("--quick", action="store_true", help="small sizes: to see that it works")
    note = "folder with client_sizes/, features and images; default: "
    note += "$FED3R_BENCH_DATA, else ../shared/data beside the project, else stand-ins"
    add("--data", type=Path, help=note)
    note = "folder for NAME.json (default: %(default)s)"
    add("--output", type=Path, default=Path("results/bench"), help=note)


def _add(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, target: str
) -> Callable[..., argparse.Action]:
    """Return what adds options to a new command that calls `module:function`."""
    module, function = target.split(":")

    def handler(options: argparse.Namespace) -> int:
        call: Callable[[argparse.Namespace], int]
        call = getattr(importlib.import_module(f"simulation.{module}"), function)
        return call(options)

    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    return parser.add_argument


def _add_federation(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "clients, classes and sizes of a federation, and a picture"
    add = _add(commands, "federation", text, "analyses.partition_plot:run")
    note = "a data set (digits, cifar100, inaturalist-users-120k, synthetic …) "
    note += "or a CSV with the columns client, num_images"
    add("name", metavar="NAME", help=note)
    add("--data-path", default="", help="where the data set lies")
    note = "default: natural where the data set has clients, else by-class"
    splits = ("iid", "dirichlet", "by-class", "natural")
    add("--partition", choices=splits, help=note)
    add("--alpha", type=float, default=0.1, help="of dirichlet (default: 0.1)")
    note = "default: the natural ones, else one per class"
    add("--clients", type=int, help=note)
    add("--seed", type=int, default=0, help="of the split (default: 0)")
    note = "PNG to write (default: results/federations/NAME)"
    add("--output", type=Path, help=note)


def _add_coupons(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "rounds to draw a share of the clients with replacement"
    add = _add(commands, "coupons", text, "analyses.coupon_collector:run")
    note = "a federation of your own instead of the paper's"
    add("--clients", type=int, help=note)
    note = "clients a round, one or more (default: 10 20 50)"
    add("--per-round", type=int, nargs="+", default=(10, 20, 50), help=note)
    add("--simulations", type=int, default=1000)
    add("--seed", type=int, default=0)
