"""Numbers and names in sentences: 1 client, 2 clients."""

from __future__ import annotations

from collections.abc import Sequence


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


def printable(text: str) -> str:
    """Return a text on which a terminal does nothing: control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
