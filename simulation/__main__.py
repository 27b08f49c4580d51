"""Command line of the simulations: ``python -m simulation``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fed3r_app.deployment.processes import app_settings
from fed3r_app.errors import RunError
from fed3r_app.files import file_lock
from simulation.analyses import coupon_collector, partition_command
from simulation.bench import command as bench
from simulation.engines.superlink import EphemeralSuperLink
from simulation.runner import commands as experiments

_HELP = """\
Run the app once with `flwr run`, on a SuperLink of its own that is stopped afterwards.
All options are those of `flwr run`; the exit code is 0 only if the run completed.
The SuperLink's log is .flwr/superlink.log; a folder has one such run at a time.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "flwr-run",
        help="flwr run, on a SuperLink of its own",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_arguments(
        commands.add_parser("bench", help="benchmarks: tables and results/bench/*.json")
    )
    compare = commands.add_parser(
        "compare-starts", help="fine-tuning from a Fed3R start and from a random one"
    )
    compare.add_argument("--output", type=Path, default=Path("results/starts"))
    coupon_collector.add_arguments(
        commands.add_parser(
            "coupons", help="rounds to draw a share of the clients with replacement"
        )
    )
    partition_command.add_arguments(
        commands.add_parser(
            "federation",
            help="clients, classes and sizes of a federation, and a picture",
        )
    )
    experiments.add_commands(commands)
    known, options = parser.parse_known_args(arguments)
    if known.command == "flwr-run":
        return _flwr_run(options)
    known = parser.parse_args(arguments)  # the others know all their options
    try:
        return _RUN[known.command](known)
    except (ValueError, OSError, RunError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 128 + signal.SIGINT


def _compare_starts(arguments: argparse.Namespace) -> int:
    from simulation.compare_starts import compare_starts  # brings Flower along

    compare_starts(Path("pyproject.toml"), arguments.output.absolute())
    return 0


_RUN = {
    "bench": bench.run,
    "compare-starts": _compare_starts,
    "coupons": coupon_collector.run,
    "federation": partition_command.run,
    **dict.fromkeys(experiments.NAMES, experiments.run),
}


def _flwr_run(options: list[str]) -> int:
    # Asked to end, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    home = Path.cwd() / ".flwr"
    try:
        app_settings(Path.cwd())  # before anything is started
        with _alone_in(home), EphemeralSuperLink(home) as superlink:
            return 0 if superlink.run(".", *options) else 1
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


@contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Keep a second run out of a folder."""
    home.mkdir(parents=True, exist_ok=True)
    refusal = (
        f"{home} must not be in use, got another run at work there. Wait until it has "
        "ended."
    )
    with file_lock(home / "lock", refusal):
        yield


if __name__ == "__main__":
    sys.exit(main())
