"""Samples to test the mathematics on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from fed3r_app.core import FactorBuilder, RidgeStatistics, StatisticsFactor

Draw = Callable[..., tuple[Tensor, Tensor]]


def draw_samples(
    kind: str, n: int, d: int, num_classes: int, seed: Any
) -> tuple[Tensor, Tensor]:
    """Return Z (n, d) and y (n,).

    ``normal`` is well conditioned; ``relu`` is what backbones give, sparse, positive,
    with columns of zeros; ``integer`` is sixteenths, as the pixels of digits are.
    """
    rng = np.random.default_rng(seed)
    if kind == "integer":
        Z = rng.integers(0, 17, size=(n, d)) / 16
    else:
        Z = rng.normal(size=(n, d))
    if kind == "relu":
        Z = np.maximum(Z, 0)
        Z[:, ::5] = 0
    y = rng.integers(num_classes, size=n)
    return torch.from_numpy(Z), torch.from_numpy(y)


def make_factor(
    Z: Tensor, y: Tensor, num_classes: int, cuts: Any = ()
) -> StatisticsFactor:
    """Return the factor of samples that come in chunks, cut at some rows."""
    builder = FactorBuilder(num_classes)
    for chunk, labels in zip(Z.tensor_split(cuts), y.tensor_split(cuts), strict=True):
        builder.add(chunk, labels)
    return builder.build()


def parts_of(stats: RidgeStatistics) -> tuple[Tensor, Tensor, Tensor]:
    return stats.A.clone(), stats.b.clone(), stats.counts.clone()


def assert_same(one: RidgeStatistics, other: RidgeStatistics, atol: float = 0) -> None:
    """Compare statistics, bit for bit or up to a size of rounding errors."""
    torch.testing.assert_close(parts_of(one), parts_of(other), rtol=0, atol=atol)


def assert_noise(drawn: Sequence[RidgeStatistics], sigma: float) -> None:
    """Check the standard deviation of noise in every part, by five standard errors."""
    A, b, counts = (
        torch.stack([getattr(noisy, part) for noisy in drawn]).double()
        for part in ("A", "b", "counts")
    )
    assert torch.equal(A, A.mT)
    upper = torch.triu(torch.ones(A.shape[1:]), 1).bool()
    for values, expected in (
        (A[:, ~upper & ~upper.T], sigma),
        (A[:, upper], sigma / math.sqrt(2)),
        (b, sigma),
        # Rounding to whole numbers adds 1/12 to the variance.
        (counts, math.hypot(sigma, 12**-0.5)),
    ):
        # The standard error of a deviation is expected / sqrt(2n).
        tolerance = 5 / math.sqrt(2 * values.numel())
        assert float(values.std()) == pytest.approx(expected, rel=tolerance)
        assert abs(float(values.mean())) < 5 * expected / math.sqrt(values.numel())


def uniform_bytes(values: NDArray[np.uint64], level: float = 1e-10) -> bool:
    """Return whether the bytes of integers look uniform, in every byte's place.

    A sound generator fails at this level once in 10^10 runs.
    """
    limit = chi2.isf(level / 8, 255)
    for place in values.view(np.uint8).reshape(-1, 8).T:
        counts = np.bincount(place, minlength=256)
        expected = len(place) / 256
        if float(((counts - expected) ** 2).sum() / expected) > limit:
            return False
    return True


@pytest.fixture(scope="session")
def draw() -> Draw:
    return draw_samples
