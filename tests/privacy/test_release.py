"""One sample moves the sums by no more than said; the noise is as large as said."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.privacy.gaussian import (
    add_noise,
    gaussian_mechanism,
    make_valid,
    private_lambda,
    release_sensitivity,
    sensitivity,
)
from tests.harness.samples import Draw, assert_noise

D, C, SIGMA = 40, 5, 3.0


def normals(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return lambda size: torch.randn(size, generator=generator, dtype=torch.float64)


def as_vector(stats: Any) -> Any:
    """Return (A, b, counts) as the vector that the noise is added to."""
    rows, columns = torch.triu_indices(stats.d, stats.d)
    triangle = stats.A[rows, columns] * (1.0 + (rows != columns).double()).sqrt()
    return torch.cat([triangle, stats.b.flatten(), stats.counts.double()])


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 20), st.booleans(), st.floats(0.1, 10))
def test_one_sample_moves_the_sums_by_no_more_than_the_sensitivity(
    seed: int, n: int, intercept: Any, norm: Any
) -> None:
    rng = np.random.default_rng(seed)
    feature_map = FeatureMap(D, intercept=intercept, norm=norm)
    Z = feature_map(torch.from_numpy(rng.normal(size=(n + 1, D)) * 10 ** rng.uniform()))
    y = torch.from_numpy(rng.integers(C, size=n + 1))
    one, other = (RidgeStatistics.of(Z[:m], y[:m], C) for m in (n, n + 1))
    distance = float((as_vector(other) - as_vector(one)).norm())
    # Features have the norm exactly, so that the bound is met.
    assert distance == pytest.approx(sensitivity(norm), rel=1e-9)


def test_the_sensitivity_is_that_of_the_formula() -> None:
    assert sensitivity(1.0) == math.sqrt(3)
    assert sensitivity(2.0) == math.sqrt(16 + 4 + 1)
    assert sensitivity(1.0) < release_sensitivity(1.0, 1280, 100) < 1.7322


def test_the_noise_has_the_deviation_asked_for_everywhere() -> None:
    stats = RidgeStatistics.zeros(D, C)
    drawn = [add_noise(stats, SIGMA, normals(seed)) for seed in range(200)]
    assert_noise(drawn, SIGMA)


def test_noise_is_independent_between_entries() -> None:
    stats = RidgeStatistics.zeros(6, 2)
    drawn = torch.stack(
        [as_vector(add_noise(stats, SIGMA, normals(seed))) for seed in range(4000)]
    )
    correlation = torch.corrcoef(drawn.T) - torch.eye(drawn.shape[1])
    assert float(correlation.abs().max()) < 6 / math.sqrt(len(drawn))


def test_no_digit_of_the_data_shows_below_the_grid(draw: Draw) -> None:
    Z, y = draw("normal", 50, D, C, seed=1)
    noisy = add_noise(RidgeStatistics.of(Z, y, C), SIGMA, normals(0))
    for values in (noisy.A, noisy.b):
        assert torch.equal(values * 2**24, (values * 2**24).round())


def test_what_is_released_is_valid_and_near(draw: Draw) -> None:
    Z, y = draw("normal", 3000, D, C, seed=1)
    stats = RidgeStatistics.of(Z, y, C)
    released = gaussian_mechanism(stats, SIGMA, normals(0))
    assert float(torch.linalg.eigvalsh(released.A).min()) > -1e-9
    assert bool((released.counts >= 0).all())
    size = SIGMA * math.sqrt(D * (D + 1) / 2 + D * C + C)
    distance = float((as_vector(released) - as_vector(stats)).norm())
    assert distance == pytest.approx(size, rel=0.2)


def test_clipping_gives_the_nearest_semidefinite_matrix() -> None:
    A = torch.diag(torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64))
    expected = torch.diag(torch.tensor([3.0, 0.0, 0.5], dtype=torch.float64))
    stats = RidgeStatistics(A, torch.zeros(3, 2).double(), torch.tensor([-4, 4]))
    assert torch.equal(make_valid(stats).A, expected)
    assert make_valid(stats).counts.tolist() == [0, 4]


def test_lambda_is_the_size_of_the_noise_in_the_matrix() -> None:
    d = 400
    noise = add_noise(RidgeStatistics.zeros(d, 1), SIGMA, normals(3)).A
    largest = float(torch.linalg.matrix_norm(noise, 2))
    assert largest == pytest.approx(private_lambda(SIGMA, d), rel=0.05)
