"""What the commands ``run``, ``list``, ``show``, ``table`` and ``plot`` do."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable

from fed3r_app.config import DEFAULTS
from fed3r_app.words import plural
from simulation.runner.collect import Results, collect
from simulation.runner.composition import catalogue
from simulation.runner.execute import run_experiments
from simulation.runner.experiment import Experiment, load, read_experiment
from simulation.runner.html_report import write_report
from simulation.runner.outcome_tables import tables_of
from simulation.runner.run_grid import needs_data_path
from simulation.runner.store import DONE, Store
from simulation.tables import Table

_INTERRUPTED = 130
Handler = Callable[[argparse.Namespace], int]


def _with_exit_code(handler: Handler) -> Handler:
    """Return a command that prints its errors and returns an exit code."""

    def call(arguments: argparse.Namespace) -> int:
        try:
            return handler(arguments)
        except KeyboardInterrupt:
            print("\nInterrupted. The same command resumes it.", file=sys.stderr)
            return _INTERRUPTED
        except BrokenPipeError:  # the reader has seen enough
            raise
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return 2

    return call


@_with_exit_code
def run_command(arguments: argparse.Namespace) -> int:
    """Run experiments; return 0 if everything is done then."""
    if arguments.jobs < 0:
        raise ValueError(f"--jobs must be >= 1, got {arguments.jobs}.")
    # Asked to end, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    store = Store.at(arguments.output)
    return run_experiments(_load(arguments), store, arguments.engine, arguments.jobs)


@_with_exit_code
def list_command(arguments: argparse.Namespace) -> int:
    """Print all experiments and how much of each is done."""
    store, rows = Store.at(arguments.output), []
    for name, source in catalogue().items():
        # A run is known by its folder, too; to list its settings, any will do.
        experiment = read_experiment(source, arguments.data_path or os.getcwd())
        runs = experiment.all_runs
        done = sum(store.state(run) == DONE for run in runs)
        data = {run.config["dataset"] for run in runs}
        wants = "--data-path" if any(map(needs_data_path, data)) else ""
        known = arguments.data_path or not wants
        state = f"{done if known else '?'} of {len(runs)}"
        rows.append((name, experiment.title, state, wants))
    columns = ("experiment", "what it shows", "runs done", "needs")
    print(Table("fed3r experiments run EXPERIMENT", columns, rows, 2).text())
    return 0


@_with_exit_code
def show_command(arguments: argparse.Namespace) -> int:
    """Print the runs of experiments and what they change of the defaults."""
    store = Store.at(arguments.output)
    for experiment in _load(arguments):
        print(f"{experiment.name}: {experiment.title}\n{experiment.source.file}\n")
        if experiment.about:
            print(f"{experiment.about}\n")
        for run in experiment.all_runs:
            changed = {k: v for k, v in run.config.items() if v != DEFAULTS[k]}
            settings = " ".join(f"{key}={value!r}" for key, value in changed.items())
            print(f"{run.title} [{store.state(run)}]")
            print(f"    clients={run.clients} {settings}")
    return 0


@_with_exit_code
def table_command(arguments: argparse.Namespace) -> int:
    """Print the tables of experiments."""
    store, code = Store.at(arguments.output), 0
    for experiment in _load(arguments):
        results = collect(experiment, store)
        for table in tables_of(results):
            print(table.markdown() if arguments.markdown else table.text(), end="\n\n")
        code |= _report_missing(results)
    return code


@_with_exit_code
def plot_command(arguments: argparse.Namespace) -> int:
    """Draw the pictures of experiments and write their reports."""
    store, code = Store.at(arguments.output), 0
    for experiment in _load(arguments):
        report = write_report(experiment, store, arguments.format)
        code |= _report_missing(report.results)
        for path in report.figures:
            print(f"Picture: {path}")
            if arguments.to:
                arguments.to.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, arguments.to / f"{experiment.name}-{path.name}")
        print(f"Report: {report.page}")
    return code


def _report_missing(results: Results) -> int:
    """Print how many runs are missing; return the exit code."""
    experiment, missing = results.experiment, len(results.missing)
    if not missing:
        return 0
    print(
        f"{experiment.name}: {missing} of {plural(len(experiment.runs), 'run')} "
        "missing. "
        f"`fed3r experiments run {experiment.name}` runs them.",
        file=sys.stderr,
    )
    return 1


def _load(arguments: argparse.Namespace) -> list[Experiment]:
    """Return the experiments that are named, all checked before anything else."""
    found = (load(name, arguments.data_path) for name in arguments.names)
    return list({each.source: each for every in found for each in every}.values())
