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
    *("upload", "server", "solve", "extract", "engine"),
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
    parsers = {
        name: _add(commands, name, text, f"simulation.runner.commands:{name}_command")
        for name, text in _ON_EXPERIMENTS.items()
    }
    for name, parser in parsers.items():
        if name != "list":
            parser.add_argument(
                "names",
                nargs="+",
                metavar="EXPERIMENT",
                help="a name as `list` shows, a pattern such as '*-digits', or a file",
            )
        parser.add_argument(
            "--data-path", default="", metavar="DIR", help="folder of the data set"
        )
        parser.add_argument(
            "--output",
            type=Path,
            metavar="DIR",
            help="folder for all results (default: results/experiments)",
        )
    _add_run_options(parsers["run"])
    parsers["plot"].add_argument(
        "--to", type=Path, metavar="DIR", help="also copy the pictures there"
    )
    parsers["table"].add_argument("--markdown", action="store_true", help="as Markdown")
    _add_federation(commands)
    _add_coupons(commands)


def add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command that runs benchmarks to a parser."""
    text = "benchmarks: tables and results/bench/*.json"
    parser = _add(commands, "bench", text, "simulation.bench.command:run")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which benchmarks, of: {', '.join(BENCHMARKS)}; all if none is named",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: to see that it works"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with client_sizes/, features and images; default: "
        "$FED3R_BENCH_DATA, else ../shared/data beside the project, else stand-ins",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/bench"),
        help="folder for NAME.json (default: %(default)s)",
    )


def _add(
    commands: Commands[argparse.ArgumentParser], name: str, text: str, target: str
) -> argparse.ArgumentParser:
    """Return the parser of a new command that calls `module:function`."""
    module, function = target.split(":")

    def handler(options: argparse.Namespace) -> int:
        call: Callable[[argparse.Namespace], int]
        call = getattr(importlib.import_module(module), function)
        return call(options)

    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("inline", "flower"),
        default="inline",
        help="inline: in worker processes; flower: `flwr run` on Ray",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="runs at a time; the cores are shared among them (default: up to 4)",
    )


def _add_federation(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "clients, classes and sizes of a federation, and a picture"
    target = "simulation.analyses.partition_plot:run"
    parser = _add(commands, "federation", text, target)
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a data set (digits, cifar100, inaturalist-users-120k, synthetic …) "
        "or a CSV with the columns client, num_images",
    )
    parser.add_argument("--data-path", default="", help="where the data set lies")
    parser.add_argument(
        "--partition",
        choices=("iid", "dirichlet", "by-class", "natural"),
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


def _add_coupons(commands: Commands[argparse.ArgumentParser]) -> None:
    text = "rounds to draw a share of the clients with replacement"
    target = "simulation.analyses.coupon_collector:run"
    parser = _add(commands, "coupons", text, target)
    parser.add_argument(
        "--clients", type=int, help="a federation of your own instead of the paper's"
    )
    parser.add_argument(
        "--per-round",
        type=int,
        nargs="+",
        default=(10, 20, 50),
        help="clients a round, one or more (default: 10 20 50)",
    )
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
