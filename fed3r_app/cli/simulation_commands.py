"""`fed3r experiments` and `fed3r bench`: the commands of ``simulation``."""

from __future__ import annotations

import argparse

from fed3r_app.cli.arguments import Commands
from simulation.commands import add_bench, add_experiments


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    about = "run experiments on this machine: the paper's, and your own"
    experiments = commands.add_parser("experiments", help=about, description=about)
    add_experiments(experiments.add_subparsers(required=True, metavar="COMMAND"))
    add_bench(commands)
