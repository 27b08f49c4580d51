"""The commands of `fed3r` for a saved run: add, forget, replace, solve, audit."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.cli.arguments import Commands, add_app, add_superlink, app_folder
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.report import format_percent, summary_table

if TYPE_CHECKING:
    from fed3r_app.runs.saved_run import SavedRun


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    _add_add(commands)
    _add_forget(commands)
    _add_replace(commands)
    _add_solve(commands)
    _add_audit(commands)


def add_clients(options: argparse.Namespace) -> int:
    """Ask the clients that are connected and not yet in the sums; add them."""
    from fed3r_app.runs.state import readmit

    directory = _directory(options)
    with directory.locked():
        run = _open(directory)
        run.check_can_change()
        for client in options.readmit:
            run.snapshot = readmit(run.state, run.snapshot, client)
    return _start(directory, options)


def replace(options: argparse.Namespace) -> int:
    """Put what a client has now in the place of what it had."""
    return _start(_directory(options), options, replace=options.client)


def forget(options: argparse.Namespace) -> int:
    """Take a client out of the sums: by what was kept of it, or by asking it again."""
    directory, client = _directory(options), options.client
    with directory.locked():
        run = _open(directory)
        run.check_can_change()
        done = client in run.snapshot.forgotten
        if not done:
            run.check_counts(client)
            contribution = run.state.kept(run.snapshot, client)
            if contribution is not None:
                run.forget(client, contribution)
                done = True
        if done:  # also after a crash between the sums and the model
            run.write_model()
            print(f"Client {client} is forgotten.")
            _show(directory)
            return 0
    if options.address is None:
        raise ValueError(
            f"Client {client} must be asked for its statistics once more, since they "
            "were not kept (keep-contributions): give the SuperLink's HOST:PORT."
        )
    return _start(directory, options, forget=client)


def solve(options: argparse.Namespace) -> int:
    """Make a new classifier of the sums of a run; no client is involved."""
    directory, output = _directory(options), options.output
    lam = _read_lambda(options.ridge_lambda)
    with directory.locked():
        run = _open(directory)
        if run.config.method == "fedncm" and lam != "auto":
            raise ValueError(
                f"--ridge-lambda must be auto for class means (fedncm), got {lam:g}."
            )
        if output is None:
            run.check_is_closed_form()
            model = run.write_model(lam)
        else:
            model = run.save_model_elsewhere(output, lam)
    if model is None:
        print("No images are left, and so no model.")
        return 0
    if model.ridge_lambda is not None:
        print(f"lambda    {model.ridge_lambda:.4g}")
    metrics = run.evaluate(model)
    known = "not known: no test images here"
    print(f"accuracy  {format_percent(metrics.accuracy) if metrics else known}")
    print(f"Model     {output or directory.model_path}")
    return 0


def audit_run(options: argparse.Namespace) -> int:
    """Print whether all that a run has saved agrees; return 1 if not."""
    from fed3r_app.runs.audit import audit
    from fed3r_app.runs.saved_run import SavedRun

    bad = 0
    for finding in audit(SavedRun(_directory(options))):
        print(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.text}", flush=True)
        bad += not finding.ok
    return min(bad, 1)


def _directory(options: argparse.Namespace) -> RunDirectory:
    return RunDirectory(options.run_dir.resolve())


def _open(directory: RunDirectory) -> SavedRun:
    """Return a saved run, after clearing up what a crash may have left."""
    from fed3r_app.runs.saved_run import SavedRun

    run = SavedRun(directory)
    run.state.load()
    return run


def _start(
    directory: RunDirectory, options: argparse.Namespace, **settings: str
) -> int:
    """Resume a run on a SuperLink, with some settings changed; show the outcome."""
    from fed3r_app.deployment.superlink import SuperLink

    config = directory.read_config() | {
        "output-dir": str(directory.path.parent),
        "run-name": directory.path.name,
        "resume": True,
        "wait-for": 0,  # whoever is connected; the others are in the sums
        **settings,
    }
    superlink = SuperLink(options.address, options.root_certificates)
    with tempfile.TemporaryDirectory() as folder, app_folder(options.app) as app:
        path = Path(folder) / "run-config.toml"
        lines = (f"{key} = {_toml(value)}\n" for key, value in config.items())
        path.write_text("".join(lines), "utf-8")
        superlink.run(app, [str(path)])
    _show(directory)
    return 0


def _toml(value: str | int | float | bool) -> str:
    """Return a value as TOML has it, which for these kinds is as JSON has it."""
    return json.dumps(value, ensure_ascii=False)


def _show(directory: RunDirectory) -> None:
    """Print the summary of a run, where it has one."""
    if directory.summary_path.is_file():
        print(summary_table(directory.read_summary()))
    print(f"\nRun      {directory.path}")


def _read_lambda(text: str) -> float | str:
    """Return the number in --ridge-lambda, or auto."""
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"--ridge-lambda must be auto or a number > 0, got {text!r}.")
    return value


def _add_add(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "add",
        help="add clients that have come since to the sums of a run",
        description="Go on with a run: ask the clients that are connected and not yet "
        "in its sums, add them, and solve again.",
    )
    command.set_defaults(handler=add_clients)
    _add_run_dir(command)
    _add_superlink(command)
    command.add_argument(
        "--readmit",
        metavar="CLIENT",
        action="append",
        default=[],
        help="a client that was forgotten and may be asked again; may be repeated",
    )


def _add_forget(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "forget",
        help="take a client out of the sums of a run, exactly",
        description="Subtract a client's statistics from the sums and solve again: the "
        "classifier of a run that never had it. Where contributions were kept, nobody "
        "is asked; else that client is, once more, and must have the same data.",
    )
    command.set_defaults(handler=forget)
    _add_run_dir(command)
    command.add_argument("client", metavar="CLIENT", help="its id")
    _add_superlink(command, nargs="?")


def _add_replace(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "replace",
        help="put what a client has now in the place of what it had",
        description="Ask a client for its statistics and put them in the place of "
        "those in the sums, which must have been kept (keep-contributions).",
    )
    command.set_defaults(handler=replace)
    _add_run_dir(command)
    command.add_argument("client", metavar="CLIENT", help="its id")
    _add_superlink(command)


def _add_solve(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "solve",
        help="make a new classifier of the sums of a run",
        description="Solve again with another lambda. No client is involved.",
    )
    command.set_defaults(handler=solve)
    _add_run_dir(command)
    command.add_argument(
        "--ridge-lambda",
        metavar="LAMBDA",
        default="auto",
        help="a number, or auto: by generalised cross-validation (default)",
    )
    command.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="file for the model (default: that of the run, which is replaced)",
    )


def _add_audit(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "audit",
        help="check a run's sums against its ledger, kept files and model",
        description="Check that all that a run has saved agrees. Nothing is changed; "
        "the exit code is 1 if anything is wrong.",
    )
    command.set_defaults(handler=audit_run)
    _add_run_dir(command)


def _add_run_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="folder of the run"
    )


def _add_superlink(command: argparse.ArgumentParser, nargs: str | None = None) -> None:
    note = "; its ServerApps must see RUN_DIR at the same place"
    add_superlink(command, note, nargs)
    add_app(command)
