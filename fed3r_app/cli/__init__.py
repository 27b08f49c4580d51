"""The command ``fed3r``: its parser, one module for each group of commands.

Commands parse, print and exit; what they do is done by ``runs``, ``deployment``,
``server`` and ``simulation``, imported where it is used so that ``fed3r show`` starts
without torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from fed3r_app.cli import (
    demo_commands,
    deployment_commands,
    model_commands,
    run_commands,
    ui_commands,
)
from fed3r_app.errors import RunError
from simulation.commands import add_bench, add_experiments

_BROKEN_PIPE = 141  # as a shell says it: 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0, or 1 after an error on stderr."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.handler(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough: `fed3r show | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (OSError, ValueError, RunError) as error:
        return model_commands.fail(error)
    except KeyboardInterrupt:
        return 130


def _version() -> str:
    try:
        return version("fed3r-flower")
    except PackageNotFoundError:  # a clone that is not installed
        return "not installed"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fed3r",
        description="Run Fed3R, look at its runs, and use their models.",
        epilog="Runs are started with `fed3r run` on a SuperLink, or with `flwr run`; "
        "each leaves a folder in results/.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (
        model_commands,
        run_commands,
        deployment_commands,
        demo_commands,
        ui_commands,
    ):
        module.commands.add_to(commands)
    about = "run experiments on this machine: the paper's, and your own"
    experiments = commands.add_parser("experiments", help=about, description=about)
    add_experiments(experiments.add_subparsers(required=True, metavar="COMMAND"))
    add_bench(commands)
    return parser
