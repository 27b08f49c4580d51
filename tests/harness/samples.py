"""Samples to test the mathematics on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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


@pytest.fixture(scope="session")
def draw() -> Draw:
    return draw_samples
