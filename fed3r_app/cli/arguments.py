"""What the commands of `fed3r` share: their shape, and options that several have.

A group of commands is a module with ``add(commands)``. It adds a parser for each of its
commands, whose ``handler`` takes the parsed options and returns the exit code.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Commands = argparse._SubParsersAction  # what add_subparsers() returns


def add_superlink(
    command: argparse.ArgumentParser, note: str = "", nargs: str | None = None
) -> None:
    """Add the address of a SuperLink and how to know it."""
    command.add_argument(
        "address",
        metavar="HOST:PORT",
        nargs=nargs,
        help=f"where the SuperLink listens{note}",
    )
    command.add_argument(
        "--root-certificates",
        metavar="CA.CRT",
        type=Path,
        help="the authority that signed its certificate; without it: no TLS",
    )


def add_app(command: argparse.ArgumentParser) -> None:
    """Add the folder of the app."""
    command.add_argument(
        "--app", type=Path, help="folder of the app (default: here, else as installed)"
    )


@contextmanager
def app_folder(chosen: Path | None) -> Iterator[Path]:
    """Give the folder of the app: the chosen one, this one, or the installed app's."""
    here = Path()
    if chosen is not None or (here / "pyproject.toml").is_file():
        yield chosen or here
        return
    from fed3r_app.deployment.processes import INSTALLED_APP, stage_app

    with tempfile.TemporaryDirectory() as folder:
        yield stage_app(INSTALLED_APP, Path(folder) / "app")
