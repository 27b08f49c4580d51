"""Values that are far above those of the others, whoever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

# Of mean squared norms: those of one backbone's features differ by less than half of it
# from class to class.
FACTOR = 10.0
_FEWEST = 2  # of two values, nobody can say which one is wrong


def far_above_others(
    values: Mapping[str, float], known: Sequence[float] = ()
) -> dict[str, float]:
    """Return the most that each value far above the median of all others may be.

    ``known`` are others that are not in question.
    """
    far = {}
    for name, value in values.items():
        others = [*known, *(values[other] for other in values if other != name)]
        if len(others) >= _FEWEST and not value <= FACTOR * median(others):
            far[name] = FACTOR * median(others)
    return far
