"""Who adds the noise of differential privacy, and its one release in a run.

The server may add it to the sum, or the clients to their parts, before anything is
masked. The noise of t clients with variance sigma^2 / t each has variance sigma^2. With
t the least number of survivors whose sum is ever unmasked, every such sum has enough.
The integers that it is added to move by no more than the sensitivity, because features
are rounded towards zero. The noise is rounded to units so fine (4^-g in A, 2^-g in b
and in the counts) that a sum of rounded shares is as good as a rounded sum.
Rounded to whole samples, the small shares of many clients would all be zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from fed3r_app.core import RidgeStatistics
from fed3r_app.errors import RunError
from fed3r_app.privacy import CENTRAL, DISTRIBUTED
from fed3r_app.privacy.gaussian import (
    NEIGHBOURS,
    NORM,
    PrivacyBudget,
    gaussian_mechanism,
    make_valid,
    private_lambda,
    secure_normals,
    sensitivity,
)
from fed3r_app.privacy.secagg import IntegerStatistics
from fed3r_app.words import plural


class _Noise:
    """The noise of one release; ``mode`` says who adds it.

    ``sigma`` is its standard deviation in the statistics of all clients.
    """

    mode: str
    sigma: float

    def __init__(self, budget: PrivacyBudget, d: int) -> None:
        self._budget = budget
        self._d = d

    @property
    def lam(self) -> float:
        """The ridge penalty that goes with the noise."""
        return private_lambda(self.sigma, self._d)

    def summary(self) -> dict[str, object]:
        """Return what the run's summary says of its privacy."""
        return {
            "mode": self.mode,
            "epsilon": self._budget.epsilon,
            "delta": self._budget.delta,
            "sigma": self.sigma,
            "sensitivity": sensitivity(NORM),
            "feature_norm": NORM,
            "neighbours": NEIGHBOURS,
        }


class CentralNoise(_Noise):
    """Noise that the server adds to statistics of d features and C classes, once."""

    mode = CENTRAL

    def __init__(self, budget: PrivacyBudget, d: int, num_classes: int) -> None:
        super().__init__(budget, d)
        self.sigma = budget.central_sigma(d, num_classes)

    def release(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics with noise; call it once."""
        log(
            INFO,
            "Differential privacy: epsilon %g, delta %g, noise with standard deviation "
            "%.4g",
            self._budget.epsilon,
            self._budget.delta,
            self.sigma,
        )
        return gaussian_mechanism(stats, self.sigma, secure_normals)


class DistributedNoise(_Noise):
    """Noise that the clients have added to the statistics of their groups.

    The sum over each group is private by itself: t members, the least that are ever
    unmasked, have noise with standard deviation sigma together, and m survivors noise
    with sigma sqrt(m / t).
    """

    mode = DISTRIBUTED
    sigma = 0.0
    _shares = 0.0

    def add_group(self, survivors: int, threshold: int) -> None:
        """Add a group whose survivors each added 1/threshold of the noise variance."""
        if survivors < threshold:
            raise RunError(
                "The noise of a group was calibrated for "
                f"{plural(threshold, 'client')}, got {survivors}."
            )
        self._shares += survivors / threshold
        self.sigma = self._budget.distributed_sigma() * math.sqrt(self._shares)

    def release(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the noisy statistics, made valid again."""
        return make_valid(stats)


def add_noise_share(
    integers: IntegerStatistics, sigma: float, bits: int
) -> IntegerStatistics:
    """Return a client's statistics with its share of the noise, counts in 2^-bits.

    ``sigma`` is the share's standard deviation in isometric coordinates: an entry of A
    off the diagonal gets 1 / sqrt(2) of it.
    """
    d = len(integers.b)
    rows = np.arange(d)
    scale = np.full(len(integers.A), sigma / math.sqrt(2) * 4.0**bits)
    scale[rows * d - rows * (rows - 1) // 2] *= math.sqrt(2)  # on the diagonal
    return IntegerStatistics(
        integers.A + _draw(len(integers.A), scale),
        integers.b + _draw(integers.b.size, sigma * 2.0**bits).reshape(d, -1),
        (integers.counts << bits) + _draw(len(integers.counts), sigma * 2.0**bits),
    )


def round_counts(integers: IntegerStatistics, bits: int) -> IntegerStatistics:
    """Return a noisy sum with its counts in whole samples again."""
    counts = np.rint(integers.counts * 2.0**-bits).astype(np.int64)
    return replace(integers, counts=counts)


def _draw(
    size: int, standard_deviation: float | NDArray[np.float64]
) -> NDArray[np.int64]:
    noise = secure_normals(size).numpy() * standard_deviation
    return np.rint(noise).astype(np.int64)
