"""What ``fed3r`` alone prints: its commands, by what a newcomer wants to do."""

from __future__ import annotations

import argparse

# Headings, each with its commands in the order in which they are needed.
GROUPS = {
    "Run on this machine": ("simulate", "demo", "experiments", "bench"),
    "Look at results": ("ls", "show", "predict", "ui"),
    "Change a finished run": ("add", "forget", "replace", "solve", "audit"),
    "Run on real nodes": (
        *("run", "node", "clients", "check", "register", "certificates"),
        *("superlink", "cache", "app", "demo-data"),
    ),
}
_OTHERS = "Other commands"


def group_commands(
    parser: argparse.ArgumentParser,
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Let the help of a parser list its commands in groups."""
    about = {each.dest: each.help or "" for each in commands._choices_actions}
    width = max(map(len, about))
    groups = {
        heading: [name for name in names if name in about]
        for heading, names in (GROUPS | {_OTHERS: _ungrouped(list(about))}).items()
    }
    parser.epilog = "\n\n".join(
        "\n".join([f"{heading}:", *(f"  {n:<{width}}  {about[n]}" for n in names)])
        for heading, names in [*groups.items()]
        if names
    )
    parser.epilog += "\n\nfed3r COMMAND --help says more about each."
    commands.help = argparse.SUPPRESS
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "fed3r [-h] [--version] COMMAND …"


def _ungrouped(names: list[str]) -> tuple[str, ...]:
    grouped = {name for names in GROUPS.values() for name in names}
    return tuple(name for name in names if name not in grouped)
