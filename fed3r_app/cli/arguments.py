"""What the commands of `fed3r` share: how they register and fail, and options.

A module of commands has a ``Group``; each command is a function that takes the parsed
options and returns the exit code, under a decorator that describes its arguments. Its
docstring is what ``--help`` says.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fed3r_app.errors import RunError, SettingsError, before_start
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.provenance import COMMAND_VARIABLE
from fed3r_app.runs.report import summary_table
from fed3r_app.words import RUN_AGAIN, printable

if TYPE_CHECKING:
    from fed3r_app.deployment.superlink import SuperLink

Commands = argparse._SubParsersAction  # what add_subparsers() returns
Handler = Callable[[argparse.Namespace], int]
Settings = Mapping[str, str | int | float | bool]
Argument = tuple[str, dict[str, Any]]  # as add_argument() takes it


class Group:
    """The commands of a module, in the order of their definition."""

    def __init__(self) -> None:
        self._commands: list[tuple[str, str, tuple[Argument, ...], Handler]] = []

    def command(
        self, name: str, help: str, *arguments: Argument
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that makes a function the handler of a command."""

        def register(handler: Handler) -> Handler:
            self._commands.append((name, help, arguments, handler))
            return handler

        return register

    def add_to(self, commands: Commands[argparse.ArgumentParser]) -> None:
        """Add a parser for each command, described by the docstring of its handler."""
        for name, help, arguments, handler in self._commands:
            about = inspect.getdoc(handler)
            parser = commands.add_parser(name, help=help, description=about)
            parser.set_defaults(handler=handler)
            for argument, options in arguments:
                parser.add_argument(argument, **options)


def argument(name: str, help: str | None = None, **options: Any) -> Argument:
    """Return the description of an argument, options as add_argument() has them."""
    return name, {"help": help, **options}


def repeated(name: str, help: str, **options: Any) -> Argument:
    """Return an option that may be given several times: a list, empty by default."""
    return argument(name, help, action="append", **{"default": [], **options})


def path(name: str, metavar: str, help: str | None = None, **options: Any) -> Argument:
    """Return an argument that is a path."""
    return argument(name, help, metavar=metavar, type=Path, **options)


def superlink(note: str = "", nargs: str | None = None) -> tuple[Argument, Argument]:
    """Return the address of a SuperLink and the certificate it is known by."""
    where = f"where the SuperLink listens{note}"
    authority = "the authority that signed its certificate; without it: no TLS"
    return (
        argument("address", where, metavar="HOST:PORT", nargs=nargs),
        path("--root-certificates", "CA.CRT", authority),
    )


def connection(options: argparse.Namespace) -> SuperLink:
    """Return the SuperLink that the arguments of ``superlink`` name."""
    from fed3r_app.deployment.superlink import SuperLink

    return SuperLink(options.address, options.root_certificates)


SETTINGS = (
    argument(
        "given",
        "settings of the run, as in docs/settings.md",
        metavar="KEY=VALUE",
        nargs="*",
    ),
    path(
        "--config",
        "FILE",
        "more settings: TOML, YAML, or the config.json of a run to repeat; what the "
        "command line says comes first",
    ),
    repeated("--run-config", "as in `flwr run`: settings, or FILE", metavar="…"),
)


class Parser(argparse.ArgumentParser):
    """A parser of commands that may have settings, between its options or behind."""

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the options, with all other words in `given` if there is one."""
        options, others = super().parse_known_args(args, namespace)
        if hasattr(options, "given"):  # argparse takes only those of one place
            options.given, others = [*options.given, *others], []
        return options, others

    def error(self, message: str) -> NoReturn:
        """Exit with a message; of many choices, the one that was meant is enough."""
        wrong = re.fullmatch(r"(.*: '(.+)') \(choose from (.+)\)", message)
        if wrong:
            names = re.findall(r"[\w-]+", wrong[3])
            if near := get_close_matches(wrong[2], names, n=1):
                message = f"{wrong[1]}. Did you mean {near[0]!r}?"
        super().error(message)


def run_settings(
    options: argparse.Namespace, **fixed: str
) -> dict[str, str | int | float | bool]:
    """Return the settings in the arguments of ``SETTINGS``; they go together.

    ``fixed`` are those that the command itself sets. What can't be right raises a
    SettingsError.
    """
    from fed3r_app.config import RETIRED, retired_keys
    from fed3r_app.server.preflight import given_settings

    with before_start():
        settings = given_settings(
            options.given, options.run_config, options.config, fixed
        )
    for key, reason in retired_keys(settings).items():
        print(f"fed3r: {key} is ignored: {reason}.", file=sys.stderr)
    return {key: value for key, value in settings.items() if key not in RETIRED}


def fail(error: Exception) -> int:
    """Print an error on one line, and return the exit code for it."""
    print(f"fed3r: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    return 2 if isinstance(error, SettingsError) else 1


RUN = argument(
    "run", "folder of a run, or its name in the folder of runs", metavar="RUN"
)
VERBOSE = argument("--verbose", "also show what Flower logs", action="store_true")
APP = path("--app", "APP", "folder of the app (default: here, else as installed)")


def print_summary(run: RunDirectory, *, optional: bool = False) -> None:
    """Print the summary of a run, which may be optional, and its folder."""
    if run.summary_path.is_file() or not optional:
        print(summary_table(run.read_summary()))
    print(f"\nRun      {run.path}")


@contextmanager
def shown_run(options: argparse.Namespace) -> Iterator[None]:
    """Show what a run logs; an error that may be resumed says by which command."""
    from fed3r_app.console.progress import shown

    try:
        with shown(verbose=options.verbose):
            yield
    except RunError as error:
        raise type(error)(RUN_AGAIN.sub(_typed_again, str(error))) from None


def _typed_again(run: re.Match[str]) -> str:
    """Return the command that was typed, with the settings that resume its run."""
    typed = os.environ.get(COMMAND_VARIABLE, "")
    more = {"run-name": shlex.quote(run[1]), "resume": "true"}
    words = [f"{key}={value}" for key, value in more.items() if f"{key}=" not in typed]
    return f"run again: {' '.join([typed, *words])}"


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
