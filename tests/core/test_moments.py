"""Moments add up over clients, and give the width of the kernel."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.core import FeatureMoments
from tests.harness.samples import Draw

EPS = torch.finfo(torch.float64).eps


@settings(max_examples=30)
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(0, 50), max_size=12))
def test_any_split_gives_the_pooled_moments(draw: Draw, seed: int, cuts: Any) -> None:
    Z, _ = draw("relu", 50, 7, 2, seed)
    pooled = FeatureMoments.of(Z)
    total = FeatureMoments.of(Z[:0])
    for part in Z.tensor_split(sorted(cuts)):
        total = total + FeatureMoments.of(part)
    assert total.n == 50
    # Sums of positive terms: 50 * 7 roundings at most.
    torch.testing.assert_close(total.total, pooled.total, rtol=350 * EPS, atol=0)
    assert total.squared_norms == pytest.approx(pooled.squared_norms, rel=350 * EPS)
    assert total.sigma() == pytest.approx(pooled.sigma(), rel=1e4 * EPS)


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
def test_sigma_is_three_times_the_root_mean_square_distance(
    draw: Draw, kind: str, offset: Any
) -> None:
    Z = draw(kind, 30, 6, 2, 0)[0] + offset
    pairs = [float((a - b).square().sum()) for a in Z for b in Z]
    # The difference of moments loses at most 1 + offset^2 / variance ~ 1e2 in eps.
    assert FeatureMoments.of(Z).sigma() == pytest.approx(
        3 * np.sqrt(np.mean(pairs)), rel=1e4 * EPS
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 6, 7, 100])
def test_equal_features_are_refused(value: Any, n: int) -> None:
    moments = FeatureMoments.of(torch.full((n, 3), value, dtype=torch.float64))
    with pytest.raises(ValueError, match=rf"needs features that differ, got {n} equal"):
        moments.sigma()


def test_no_features_are_refused() -> None:
    with pytest.raises(ValueError, match="needs features, got none"):
        FeatureMoments.of(torch.zeros(0, 3)).sigma()


def test_moments_of_other_features_are_refused() -> None:
    with pytest.raises(ValueError, match="must agree on d; got 3 and 1"):
        FeatureMoments.of(torch.ones(2, 3)) + FeatureMoments.of(torch.ones(2, 1))
