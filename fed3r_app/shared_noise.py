"""A client's share of the noise: integers, added before anything is masked.

The noise of t clients with variance sigma^2 / t each has variance sigma^2. With t the
least number of survivors whose sum is ever unmasked, every such sum has enough. The
integers that it is added to move by no more than the sensitivity, because features are
rounded towards zero. The noise is rounded to units so fine (4^-g in A, 2^-g in b and in
the counts) that a sum of rounded shares can't be told from a rounded sum. Rounded to
whole samples, the small shares of many clients would all be zero.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fed3r_app.privacy import secure_normals
from fed3r_app.secagg import IntegerStatistics


def add_noise_share(
    integers: IntegerStatistics, sigma: float, bits: int
) -> IntegerStatistics:
    """Return a client's statistics with its share of the noise, counts in 2^-bits.

    Parameters
    ----------
    integers : IntegerStatistics
        In units of 4^-bits, 2^-bits and 1.
    sigma : float
        Deviation of the share, in isometric coordinates: an entry of A off the diagonal
        gets 1 / sqrt(2) of it.
    bits : int
        Of the grid.
    """
    d = len(integers.b)
    deviation = np.full(len(integers.A), sigma / math.sqrt(2) * 4.0**bits)
    deviation[_diagonal(d)] *= math.sqrt(2)
    return IntegerStatistics(
        integers.A + _draw(len(integers.A), deviation),
        integers.b + _draw(integers.b.size, sigma * 2.0**bits).reshape(d, -1),
        (integers.counts << bits) + _draw(len(integers.counts), sigma * 2.0**bits),
    )


def round_counts(integers: IntegerStatistics, bits: int) -> IntegerStatistics:
    """Return a noisy sum with its counts in whole samples again."""
    counts = np.rint(integers.counts * 2.0**-bits).astype(np.int64)
    return replace(integers, counts=counts)


def _draw(size: int, deviation: float | NDArray[np.float64]) -> NDArray[np.int64]:
    noise = secure_normals(size).numpy() * deviation
    return np.rint(noise).astype(np.int64)


def _diagonal(d: int) -> NDArray[np.int64]:
    """Return where the diagonal is in an upper triangle, row by row."""
    rows = np.arange(d)
    return rows * d - rows * (rows - 1) // 2
