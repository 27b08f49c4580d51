"""Samples to test the mathematics on."""

import numpy as np
import pytest
import torch


def draw_samples(kind, n, d, num_classes, seed):
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
def draw():
    return draw_samples
