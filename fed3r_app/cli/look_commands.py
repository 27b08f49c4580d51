"""`fed3r ls` and `fed3r show`: which runs there are, what they came to, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from fed3r_app.cli import arguments as args
from fed3r_app.config import DEFAULTS, OF_ONE_RUN, Value
from fed3r_app.runs.directory import LATEST, RunDirectory, output_directory
from fed3r_app.runs.listing import (
    RUNNING,
    ListedRun,
    describe_run,
    find_run,
    list_runs,
)
from fed3r_app.runs.provenance import FAILED, INTERRUPTED, provenance_rows
from fed3r_app.runs.report import Values, format_percent, summary_rows
from simulation.tables import Table

commands = args.Group()
_MAX_REASONS, _WIDEST = 5, 40
_VERBS = {RUNNING: "is running", FAILED: "failed", INTERRUPTED: "was interrupted"}


@commands.command(
    "ls",
    "list the runs in a folder, with their outcome",
    args.path(
        "results",
        "RESULTS",
        "folder of runs (default: $FED3R_OUTPUT_DIR, else results/)",
        nargs="?",
    ),
)
def list_all(options: argparse.Namespace) -> int:
    """List the runs in a folder, the last one first, with state and outcome.

    A run is complete, partial (clients are missing), running, failed, interrupted
    (stopped or killed) or damaged (its files can't be read).
    """
    folder = options.results or output_directory()
    if options.results and not folder.is_dir():
        raise FileNotFoundError(f"RESULTS must be a folder of runs, got {folder}.")
    runs = list_runs(folder) if folder.is_dir() else []
    if not runs:
        print(f"No runs in {folder}.")
        return 0
    columns = ("run", "state", "method", "data", "accuracy", "clients", "began")
    reasons = [f"{run.name}: {run.reason}" for run in runs if run.reason]
    if len(reasons) > _MAX_REASONS:
        more = len(reasons) - _MAX_REASONS
        reasons[_MAX_REASONS:] = [f"{more} more; `fed3r show RUN` says why"]
    rows = [_row(run) for run in runs]
    table = Table(f"Runs in {folder}", columns, rows, 4, tuple(reasons))
    print(table.text())
    return 0


def _row(run: ListedRun) -> tuple[str | None, ...]:
    accuracy = None if run.accuracy is None else format_percent(run.accuracy)
    counts = [str(n) for n in (run.clients_counted, run.clients) if n is not None]
    began = run.began.astimezone().strftime("%Y-%m-%d %H:%M")
    clients = " of ".join(counts) or None
    return run.name, run.state, run.method, run.dataset, accuracy, clients, began


@commands.command(
    "show",
    "print the summary of a run, or compare several",
    args.argument(
        "runs",
        "folder of a run, or its name in the folder of runs (default: latest in "
        "$FED3R_OUTPUT_DIR, else results/)",
        metavar="RUN",
        nargs="*",
    ),
    args.argument(
        "--settings",
        "also print settings that are not the default, and where the numbers are from",
        action="store_true",
    ),
    args.path("--picture", "FILE", "draw the picture to FILE.png, .svg or .pdf"),
)
def show(options: argparse.Namespace) -> int:
    """Print the summary of a run, the latest by default, and where its picture is.

    Of several runs, print the settings in which they differ, then what each came to.
    """
    if not options.runs:
        latest = output_directory() / LATEST
        if not latest.exists():
            raise FileNotFoundError(
                f"No runs in {latest.parent}. `fed3r simulate` makes one."
            )
        options.runs = [str(latest)]
    if len(options.runs) > 1:
        if options.picture:
            raise ValueError("--picture must be of one RUN, got several.")
        runs = [find_run(chosen) for chosen in options.runs]
        for table in _compare(runs, everything=options.settings):
            print(table.text(), end="\n\n")
        return 0
    (chosen,) = options.runs
    # A path need not be there: the summary's error says more.
    run = RunDirectory(Path(chosen).resolve()) if "/" in chosen else find_run(chosen)
    _check_finished(run)
    args.print_summary(run)
    picture = options.picture or run.curves_path
    if options.picture:
        from fed3r_app.runs.curves import plot_run

        plot_run(run, picture)
    if picture.is_file():
        print(f"Picture  {picture}")
    if options.settings:
        config = _settings(run)
        changed = {k: v for k, v in config.items() if v != DEFAULTS.get(k)}
        rows = [(key, _written(value)) for key, value in changed.items()]
        for title, lines in (
            ("Settings that are not the default", rows),
            ("Made with", provenance_rows(run)),
        ):
            if lines:
                print("\n" + Table(title, ("name", "value"), lines, 2).text())
    return 0


def _check_finished(run: RunDirectory) -> None:
    """Raise with what is known of a run that has no summary."""
    listed = describe_run(run)
    begun, ended = run.config_path.is_file(), run.summary_path.is_file()
    if ended or not begun or listed.state not in _VERBS:
        return  # what is damaged, or no run at all, is refused when it is read
    accuracy = listed.accuracy
    far = "" if accuracy is None else f", accuracy so far {format_percent(accuracy)}"
    why = f" ({listed.reason.rstrip('.')})" if listed.reason else ""
    way = "" if listed.state == RUNNING else " resume=true continues it."
    raise FileNotFoundError(
        f"{run.path} must hold a finished run, got one that {_VERBS[listed.state]}"
        f"{why}, rounds done: {listed.rounds}{far}.{way}"
    )


def _compare(runs: Sequence[RunDirectory], *, everything: bool) -> list[Table]:
    """Return the settings in which runs differ, what each came to, and what else."""
    names = tuple(run.path.name for run in runs)
    settings = [{k: _written(v) for k, v in _settings(run).items()} for run in runs]
    made_with = [dict(provenance_rows(run)) for run in runs]
    tables = [
        ("Settings that differ", _beside(settings, differing=True)),
        ("Outcome", _beside([dict(summary_rows(_summary(run))) for run in runs])),
        ("Made with", _beside(made_with, differing=not everything)),
    ]
    return [
        Table(title, ("", *names), rows, len(runs) + 1)
        for title, rows in tables
        if rows
    ]


def _beside(
    columns: Sequence[Mapping[str, str]], *, differing: bool = False
) -> list[tuple[str | None, ...]]:
    """Return the rows of columns by their labels; perhaps only where they differ."""
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [
        (label, *(_cut(column.get(label)) for column in columns)) for label in labels
    ]
    return [row for row in rows if not differing or len(set(row[1:])) > 1]


def _cut(text: str | None) -> str | None:
    """Return a text that leaves room for others beside it."""
    is_long = text is not None and len(text) > _WIDEST
    return f"{text[: _WIDEST - 1]}…" if text and is_long else text


def _settings(run: RunDirectory) -> dict[str, Value]:
    config = run.read_config()
    return {key: value for key, value in config.items() if key not in OF_ONE_RUN}


def _summary(run: RunDirectory) -> Values:
    """Return the summary of a run; what is known so far of one that has none."""
    listed = describe_run(run)
    summary = run.read_summary() if run.summary_path.is_file() else {}
    state = f"{listed.state}: {listed.reason}" if listed.reason else listed.state
    so_far = {
        **{"method": listed.method, "dataset": listed.dataset},
        **{"accuracy": listed.accuracy, "rounds": listed.rounds},
        **{"clients": listed.clients, "clients_counted": listed.clients_counted},
    }
    return {**so_far, **summary, "status": state}


def _written(value: Value) -> str:
    """Return a value as the user types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
