"""The commands of `fed3r` for a saved run: add, forget, replace, solve, audit."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.cli import arguments as args
from fed3r_app.console.progress import shown
from fed3r_app.core.names import METHODS
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.listing import find_run
from fed3r_app.runs.report import format_percent

if TYPE_CHECKING:
    from fed3r_app.runs.saved_run import SavedRun


commands = args.Group()
_CLIENT = args.argument("client", "id of the client", metavar="CLIENT")
_SEES_RUN = "; its ServerApps must see the run at the same place"


@commands.command(
    "add",
    "add new clients to the statistics of a finished run",
    *(args.RUN, *args.superlink(_SEES_RUN), args.APP, args.VERBOSE),
    args.repeated(
        "--readmit",
        "a client that was forgotten and may be asked again; may be repeated",
        metavar="CLIENT",
    ),
)
def add_clients(options: argparse.Namespace) -> int:
    """Resume a run with the clients that are not yet in its statistics.

    Those that are connected are asked and added, then the classifier is solved again.
    """
    with _opened(options) as run:
        run.check_can_change()
        for client in options.readmit:
            run.readmit(client)
    return _start(run.directory, options)


@commands.command(
    "forget",
    "remove a client from the statistics of a run, exactly",
    *(args.RUN, _CLIENT, *args.superlink(_SEES_RUN, nargs="?")),
    *(args.APP, args.VERBOSE),
)
def forget(options: argparse.Namespace) -> int:
    """Take a client's statistics out of those of a run, and solve again.

    The result is the classifier of a run that never had that client. Where
    contributions were kept, no client is asked; else that client is, once more, and
    must send the same statistics. With HOST:PORT, the clients that have test images
    evaluate the new classifier.
    """
    client = options.client
    if options.address is not None:
        return _start(find_run(options.run), options, forget=client)
    with _opened(options) as run:
        run.check_can_change()
        if client not in run.snapshot.forgotten:
            run.check_counts(client)
            run.forget(client)  # where enough was kept
        # Also after a crash between the statistics and the model.
        if client in run.snapshot.forgotten:
            run.write_model()
            print(f"Client {client} is forgotten.")
            args.print_summary(run.directory, optional=True)
            return 0
    raise ValueError(
        f"Client {client} must be asked for its statistics once more, since they "
        "were not kept (keep-contributions): give the SuperLink's HOST:PORT."
    )


@commands.command(
    "replace",
    "replace a client's statistics by those of its current data",
    *(args.RUN, _CLIENT, *args.superlink(_SEES_RUN), args.APP, args.VERBOSE),
)
def replace(options: argparse.Namespace) -> int:
    """Ask a client for its statistics again, and replace those it sent before.

    The earlier ones must have been kept (keep-contributions).
    """
    return _start(find_run(options.run), options, replace=options.client)


@commands.command(
    "solve",
    "solve the classifier again from the statistics of a run",
    args.RUN,
    args.argument(
        "--method",
        f"{', '.join(METHODS)}; one with the same features (default: that of the run)",
        metavar="METHOD",
    ),
    args.argument(
        "--ridge-lambda",
        "a number, or auto: by generalised cross-validation (default)",
        metavar="LAMBDA",
        default="auto",
    ),
    args.path(
        "--output",
        "FILE",
        "file for the model (default: that of the run, which is replaced)",
    ),
)
def solve(options: argparse.Namespace) -> int:
    """Solve again with another method or lambda. No client is involved.

    The method then is that of the run, unless the model is written to another file.
    """
    from fed3r_app.core import HEADS
    from fed3r_app.runs.model_file import save_model

    output, lam = options.output, _read_lambda(options.ridge_lambda)
    with _opened(options) as run:
        if options.method is not None:
            run.use_method(options.method)
        method, head = run.config.method, METHODS[run.config.method].head
        if lam != "auto" and not HEADS[head].uses_lambda:
            name = f"{head.replace('-', ' ')} ({method})"
            raise ValueError(f"--ridge-lambda must be auto for {name}, got {lam:g}.")
        if output is None:
            run.check_is_closed_form()
            model = run.write_model(lam)
        else:
            model = run.solve(lam)
            save_model(output, model)
        metrics = run.evaluate(model) if model else None
    if model is None:
        print("No images are left, and so no model.")
        return 0
    print(f"method    {model.method}")
    if model.ridge_lambda is not None:
        print(f"lambda    {model.ridge_lambda:.4g}")
    known = "not known: no test images here"
    print(f"accuracy  {format_percent(metrics.accuracy) if metrics else known}")
    print(f"Model     {output or run.directory.model_path}")
    return 0


@commands.command(
    "audit",
    "check the statistics of a run against its ledger, kept files and model",
    args.RUN,
)
def audit_run(options: argparse.Namespace) -> int:
    """Check that the files of a run agree with each other.

    Nothing is changed; the exit code is 1 if anything is wrong.
    """
    from fed3r_app.runs.audit import audit
    from fed3r_app.runs.saved_run import SavedRun

    bad = 0
    for finding in audit(SavedRun(find_run(options.run))):
        print(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.text}", flush=True)
        bad += not finding.ok
    return min(bad, 1)


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[SavedRun]:
    """Give a saved run, after clearing up what a crash may have left; show its log.

    Nobody else changes it meanwhile.
    """
    from fed3r_app.runs.saved_run import SavedRun

    directory = find_run(options.run)
    with shown(), directory.locked():
        run = SavedRun(directory)
        run.state.load()
        yield run


def _start(
    directory: RunDirectory, options: argparse.Namespace, **settings: str
) -> int:
    """Resume a run on a SuperLink, with some settings changed; show the outcome."""
    from fed3r_app.deployment.processes import write_run_config

    config = directory.read_config() | {
        "output-dir": str(directory.path.parent),
        "run-name": directory.path.name,
        "resume": True,
        "wait-for": 0,  # clients that are connected; the others are in the snapshot
        **settings,
    }
    from fed3r_app.console.progress import shown
    from fed3r_app.deployment.follow import run_app

    superlink = args.connection(options)
    with (
        tempfile.TemporaryDirectory() as folder,
        args.app_folder(options.app) as app,
        shown(verbose=options.verbose),
    ):
        run_app(superlink, app, [write_run_config(Path(folder), config)])
    return 0


def _read_lambda(text: str) -> float | str:
    """Return the number in --ridge-lambda, or auto."""
    if text == "auto":
        return text
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(f"--ridge-lambda must be auto or a number > 0, got {text!r}.")
