"""Parses command lines with the parsers of the programs, and runs nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn
from unittest.mock import patch

import click
import typer.main
from flwr.cli.app import app as flwr_app

from fed3r_app import cli
from fed3r_app.data import LOCAL
from fed3r_app.server.preflight import given_settings
from simulation import __main__ as simulation


class _ParserMade(Exception):
    """Carries the parser that a program was about to use."""


def parse(line: Sequence[str]) -> argparse.Namespace | None:
    """Return what a program here makes of a line; SystemExit if it refuses.

    None is for Flower's and for programs whose command lines are not checked.
    """
    program, *arguments = line
    if line[:3] == ["python", "-m", "simulation"]:
        _parse_simulation(arguments[2:])
    elif program == "fed3r":
        options = _parse_with(cli.main, arguments)
        check_settings(options)
        return options
    elif program == "flwr":
        _parse_flwr(arguments)
    elif program.startswith("flower-"):
        (script,) = entry_points(group="console_scripts", name=program)
        _parse_with(script.load(), arguments)
    return None


def check_settings(options: argparse.Namespace) -> None:
    """Refuse settings of a run as the command would, with ValueError."""
    if hasattr(options, "given"):
        is_demo = "nodes" in options
        given_settings(
            options.given,
            options.run_config,
            fixed={"dataset": LOCAL} if is_demo else None,
        )


def _parse_simulation(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] == "flwr-run":  # its options are those of `flwr run`
        _parse_flwr(["run", *arguments[1:]])
    else:
        _parse_with(simulation.main, arguments)


def _parse_with(
    main: Callable[..., Any], arguments: Sequence[str]
) -> argparse.Namespace:
    """Parse with the argparse parser that a program's main function makes."""

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _ParserMade(parser)

    with (
        patch.object(argparse.ArgumentParser, "parse_known_args", stop),
        patch.object(sys, "argv", ["program", *arguments]),
    ):
        try:
            main()
        except _ParserMade as made:
            parser: argparse.ArgumentParser = made.args[0]
    return parser.parse_args(arguments)


def _parse_flwr(arguments: Sequence[str]) -> None:
    """Parse with the click command that Flower's command line makes."""
    command: Any = typer.main.get_command(flwr_app)
    rest = list(arguments)
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    try:
        command.make_context("flwr", rest)
    except click.exceptions.Exit as ended:  # after --help
        raise SystemExit(ended.exit_code) from ended
    except click.UsageError as error:
        raise SystemExit(error.format_message()) from error
