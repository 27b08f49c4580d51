"""Words of messages: numbers with their nouns, and sentences that programs read."""

from __future__ import annotations

import re
from collections.abc import Sequence

RESULTS = "Results go to "  # a folder: said when a run begins
# Of `run_again`; whoever started the run says it better.
RUN_AGAIN = re.compile(r'run again with run-name="([^"]+)" resume=true\.?')


def run_again(run_name: str) -> str:
    """Return how to resume a run, where it is not known how it was started."""
    return f'run again with run-name="{run_name}" resume=true'


def plural(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: 1 class, 2 classes."""
    return f"{number} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def first_names(names: Sequence[object], most: int) -> str:
    """Return some names on one line, and how many more there are."""
    more = len(names) - most
    named = ", ".join(map(str, names[:most]))
    return f"{named} and {more} more" if more > 0 else named


def roughly(seconds: float) -> str:
    """Return a duration as people say it: 40 s, 5 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def printable(text: str) -> str:
    """Return a text on which a terminal does nothing: control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
