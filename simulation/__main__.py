"""``python -m simulation``: the commands of ``fed3r experiments``, and ``flwr-run``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from fed3r_app.console.progress import shown
from fed3r_app.deployment.process_group import orderly_exit
from fed3r_app.deployment.processes import app_settings, write_run_config
from fed3r_app.errors import RunStopped, SettingsError, before_start
from fed3r_app.runs.provenance import typed
from fed3r_app.server.preflight import given_settings
from simulation.commands import add_bench, add_experiments
from simulation.engines.superlink import private_superlink

_HELP = """\
Run the app once with `flwr run`, on a SuperLink of its own that is stopped afterwards.
All options are those of `flwr run`; the exit code is 0 only if the run completed.
In the next version there is only `fed3r simulate --engine ray`.
"""
_HINT = (
    "flwr-run goes with the next version: `fed3r simulate --engine ray --clients 10 "
    "method=fedncm` checks its settings before it starts anything."
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    flwr_run = commands.add_parser(
        "flwr-run",
        help="flwr run, on a SuperLink of its own",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flwr_run.set_defaults(handler=_flwr_run)
    add_bench(commands)
    add_experiments(commands)
    known, others = parser.parse_known_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    if known.handler is _flwr_run:
        known.options = others
    else:
        known = parser.parse_args(arguments)  # the others know all their options
    try:
        with typed("python -m simulation", words):
            code: int = known.handler(known)
        return code
    except RunStopped as error:
        print(error, file=sys.stderr)
        return 128 + signal.SIGINT
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 128 + signal.SIGINT


def _flwr_run(arguments: argparse.Namespace) -> int:
    print(_HINT, file=sys.stderr)
    app_settings(Path.cwd())  # before anything is started
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-c", "--run-config", action="append", default=[])
    known, options = parser.parse_known_args(arguments.options)
    with before_start():  # Flower drops what it does not understand
        settings = given_settings([], known.run_config)
    with orderly_exit(), private_superlink(Path.cwd() / ".flwr") as superlink:
        run_config = write_run_config(superlink.home, settings)
        with shown():
            superlink.run(".", *options, "--run-config", run_config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
