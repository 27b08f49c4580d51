"""Samples to test the mathematics on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

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


@pytest.fixture(scope="session")
def draw() -> Draw:
    return draw_samples
