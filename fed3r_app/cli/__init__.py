"""The command ``fed3r``: its parser, one module for each group of commands.

Commands parse, print and exit; what they do is done by all other rooms, imported where
it is used so that ``fed3r show`` starts without torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fed3r_app.cli import arguments as args
from fed3r_app.cli import (
    cache_commands,
    demo_commands,
    deployment_commands,
    look_commands,
    model_commands,
    node_commands,
    run_commands,
    simulation_commands,
    ui_commands,
)
from fed3r_app.cli.arguments import Parser
from fed3r_app.cli.overview import group_commands
from fed3r_app.errors import RunError, RunStopped
from fed3r_app.runs.provenance import typed, versions
from simulation.commands import add_bench, add_experiments

_BROKEN_PIPE, _INTERRUPTED = 141, 130  # as a shell says it: 128 + SIGPIPE, SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0, or that of an error on stderr.

    It is 2 for what was refused before anything was started, else 1.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options = parser.parse_args(words)
    try:
        if not hasattr(options, "handler"):
            parser.print_help()
            return 0
        with typed("fed3r", words):
            code: int = options.handler(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough: `fed3r show | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except RunStopped as error:
        args.fail(error)
        return _INTERRUPTED
    except (OSError, ValueError, RunError) as error:
        return args.fail(error)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _version() -> str:
    """Return the versions that decide on the numbers; none of them is imported."""
    found = versions()
    own = found.pop("fed3r")
    others = ", ".join(f"{name} {number}" for name, number in found.items())
    return f"fed3r {own} ({others})"


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="fed3r",
        description="Run Fed3R, look at its runs, and use their models.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", prog="fed3r")
    for module in (
        simulation_commands,
        look_commands,
        model_commands,
        run_commands,
        deployment_commands,
        cache_commands,
        demo_commands,
        node_commands,
        ui_commands,
    ):
        module.commands.add_to(commands)
    about = "run experiments on this machine: the paper's, and your own"
    experiments = commands.add_parser("experiments", help=about, description=about)
    add_experiments(experiments.add_subparsers(required=True, metavar="COMMAND"))
    add_bench(commands)
    group_commands(parser, commands)
    return parser
