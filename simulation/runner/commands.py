"""``python -m simulation run``, ``list``, ``show``, ``table`` and ``plot``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.runner.experiment import Experiment
    from simulation.runner.store import Store

NAMES = ("run", "list", "show", "table", "plot")
_HELP = {
    "run": "run experiments: what is done is skipped, what was interrupted goes on",
    "list": "list the experiments and how much of each is done",
    "show": "show an experiment's runs and settings without running anything",
    "table": "print an experiment's tables",
    "plot": "draw an experiment's pictures and write its report again",
}
_INTERRUPTED = 130


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands and their options."""
    for name in NAMES:
        parser = commands.add_parser(name, help=_HELP[name], description=_HELP[name])
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
        if name == "run":
            _add_run_options(parser)
        if name == "plot":
            parser.add_argument(
                "--to", type=Path, metavar="DIR", help="also copy the pictures there"
            )
        if name == "table":
            parser.add_argument("--markdown", action="store_true", help="as Markdown")


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


def run(arguments: argparse.Namespace) -> int:
    """Do what a command asks for; return the exit code."""
    command: Callable[[argparse.Namespace], int] = globals()[f"_{arguments.command}"]
    try:
        return command(arguments)
    except KeyboardInterrupt:
        print(
            "\nInterrupted. The same command goes on where it stopped.", file=sys.stderr
        )
        return _INTERRUPTED
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from simulation.runner.execute import run_experiments

    if arguments.jobs < 0:
        raise ValueError(f"--jobs must be >= 1, got {arguments.jobs}.")
    # Asked to end, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    experiments = _load(arguments)
    return run_experiments(
        experiments, _store(arguments), arguments.engine, arguments.jobs
    )


def _list(arguments: argparse.Namespace) -> int:
    from simulation.runner.composition import catalogue
    from simulation.runner.experiment import read_experiment
    from simulation.runner.run_grid import needs_data_path
    from simulation.runner.store import DONE
    from simulation.runner.tables import Table

    store, rows = _store(arguments), []
    for name, source in catalogue().items():
        # A run is known by its folder, too; to list its settings, any will do.
        experiment = read_experiment(source, arguments.data_path or os.getcwd())
        runs = experiment.all_runs
        done = sum(store.state(run) == DONE for run in runs)
        data = {str(run.config["dataset"]) for run in runs}
        wants = "--data-path" if any(map(needs_data_path, data)) else ""
        known = arguments.data_path or not wants
        state = f"{done if known else '?'} of {len(runs)}"
        rows.append((name, experiment.title, state, wants))
    title = "python -m simulation run EXPERIMENT"
    table = Table(title, ("experiment", "what it shows", "runs done", "needs"), rows, 2)
    print(table.text())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from simulation.engines.inline import default_run_config
    from simulation.runner.experiment import PROJECT

    defaults = default_run_config(PROJECT / "pyproject.toml")
    store = _store(arguments)
    for experiment in _load(arguments):
        print(f"{experiment.name}: {experiment.title}\n{experiment.source.file}\n")
        if experiment.about:
            print(f"{experiment.about}\n")
        for run in experiment.all_runs:
            changed = {k: v for k, v in run.config.items() if v != defaults[k]}
            settings = " ".join(f"{key}={value!r}" for key, value in changed.items())
            print(f"{run.title} [{store.state(run)}]")
            print(f"    clients={run.clients} {settings}")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from simulation.runner.collect import collect
    from simulation.runner.html_report import tables_of

    store, code = _store(arguments), 0
    for experiment in _load(arguments):
        results = collect(experiment, store)
        for table in tables_of(results, store):
            print(table.markdown() if arguments.markdown else table.text(), end="\n\n")
        code |= _say_what_is_missing(experiment, len(results.missing))
    return code


def _plot(arguments: argparse.Namespace) -> int:
    from simulation.runner.collect import collect
    from simulation.runner.html_report import write_report

    store, code = _store(arguments), 0
    for experiment in _load(arguments):
        code |= _say_what_is_missing(
            experiment, len(collect(experiment, store).missing)
        )
        report = write_report(experiment, store)
        for path in report.figures:
            print(f"Picture: {path}")
            if arguments.to:
                arguments.to.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, arguments.to / f"{experiment.name}-{path.name}")
        print(f"Report: {report.page}")
    return code


def _say_what_is_missing(experiment: Experiment, missing: int) -> int:
    """Say how many runs are missing; return the exit code that this means."""
    if not missing:
        return 0
    print(
        f"{experiment.name}: {missing} of {len(experiment.runs)} runs are missing. "
        f"`python -m simulation run {experiment.name}` runs them.",
        file=sys.stderr,
    )
    return 1


def _load(arguments: argparse.Namespace) -> list[Experiment]:
    """Return the experiments that are named, all checked before anything else."""
    from simulation.runner.experiment import load

    found = [
        each for name in arguments.names for each in load(name, arguments.data_path)
    ]
    return list({each.source: each for each in found}.values())


def _store(arguments: argparse.Namespace) -> Store:
    from simulation.runner.store import Store

    return Store.at(arguments.output)
