"""What clients say of their numbers of samples, held against what they announced.

A client of n samples moves the statistics by as much as n samples can, so nothing else
that it sends weighs as much. n is known from its hello, before any sum arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fed3r_app.data.unreadable import most_unreadable
from fed3r_app.wire import ImageCounts, RecordError

# Of fewer clients, one may well have more samples than all the others.
ENOUGH_CLIENTS, _ENOUGH_OTHERS = 10, 3
_Key = TypeVar("_Key")


def outnumbering(sizes: Mapping[_Key, int]) -> list[_Key]:
    """Return the clients, or groups, with more samples than all the others together.

    Looked for anew without those that were found and, where there are enough others,
    without the largest one, so that two can't cover each other; half of all are left.
    """
    rest, found = sorted(sizes, key=lambda key: -sizes[key]), list[_Key]()
    total = sum(sizes.values())
    while len(rest) > 2:
        first, second = sizes[rest[0]], sizes[rest[1]]
        if len(rest) >= 2 + _ENOUGH_OTHERS and second > total - first - second:
            number = 2
        elif first > total - first:
            number = 1
        else:
            break
        if len(rest) - number < len(sizes) / 2:
            break
        total -= sum(sizes[key] for key in rest[:number])
        found, rest = found + rest[:number], rest[number:]
    return found


def check_announced(
    announced: int | None, n: int, counts: ImageCounts, max_unreadable: float
) -> None:
    """Raise RecordError unless a contribution is of the samples that were announced.

    Of fewer only by images that can't be read, and not too many of those. None was
    announced where numbers of images may not leave a node.
    """
    if announced is None:
        return
    most = most_unreadable(max_unreadable, announced)
    if counts.unreadable > most or n + counts.unreadable != announced:
        raise RecordError(
            f"n must be {announced}, as announced, without at most {most} unreadable "
            f"images, got {n} without {counts.unreadable}. If images have come or gone "
            "since, start the run again."
        )
