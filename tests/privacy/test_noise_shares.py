"""The clients' shares add up to the noise that the budget asks for."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.core import FeatureMap
from fed3r_app.privacy.gaussian import PrivacyBudget, sensitivity
from fed3r_app.privacy.release import add_noise_share, round_counts
from fed3r_app.privacy.secagg import FixedPointEncoding, IntegerStatistics
from fed3r_app.privacy.secagg.fixed_point import vector_length
from tests.harness.samples import assert_noise, parts_of

D, C, T = 30, 4, 5


@pytest.fixture
def grid() -> Any:
    return FixedPointEncoding(FeatureMap(D, norm=1.0), 1.0, 2**10)


def nothing() -> IntegerStatistics:
    zeros = np.zeros(vector_length(D, C), np.uint64)
    return IntegerStatistics.from_vector(zeros, D, C)


def add_up(parts: list[IntegerStatistics]) -> IntegerStatistics:
    vectors = np.stack([part.vector() for part in parts])
    return IntegerStatistics.from_vector(vectors.sum(axis=0), D, C)


def test_shares_of_as_many_as_calibrated_for_have_the_deviation_of_the_whole(
    grid: Any,
) -> None:
    sigma = PrivacyBudget(1.0, 1e-5).distributed_sigma()
    drawn = []
    for _ in range(60):
        share = partial(add_noise_share, nothing(), sigma / math.sqrt(T), grid.bits)
        total = add_up([share() for _ in range(T)])
        drawn.append(round_counts(total, grid.bits).statistics(grid))
    assert_noise(drawn, sigma)


def test_small_shares_of_the_counts_are_not_rounded_away(grid: Any) -> None:
    shares = [add_noise_share(nothing(), 0.1, grid.bits) for _ in range(1000)]
    total = add_up(shares).counts * 2.0**-grid.bits
    assert 0 < np.abs(total).max() < 6 * 0.1 * math.sqrt(1000)
    deviation = np.std([share.counts for share in shares])
    assert deviation == pytest.approx(0.1 * 2.0**grid.bits, rel=0.1)


def test_exact_counts_come_back_where_there_is_no_noise(grid: Any) -> None:
    counted = replace(nothing(), counts=np.array([3, 0, 7, 1]))
    back = round_counts(add_noise_share(counted, 1e-9, grid.bits), grid.bits)
    assert back.counts.tolist() == [3, 0, 7, 1]


def test_noise_survives_the_way_modulo_two_to_the_64(grid: Any) -> None:
    noisy = add_noise_share(nothing(), 100.0, grid.bits)
    assert (noisy.counts < 0).any() or (noisy.A < 0).any()
    back = IntegerStatistics.from_vector(noisy.vector(), D, C)
    assert np.array_equal(back.A, noisy.A)
    assert np.array_equal(back.counts, noisy.counts)


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_on_the_grid_moves_the_integers_by_no_more_than_the_sensitivity(
    grid: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    Z = grid.feature_map(torch.from_numpy(rng.normal(size=(3, D)) ** 3))
    y = torch.from_numpy(rng.integers(C, size=3))
    one, other = (IntegerStatistics.of([(Z[:n], y[:n])], C, grid) for n in (2, 3))
    change = other.statistics(grid) - one.statistics(grid)
    distance = math.sqrt(sum(float((part**2).sum()) for part in parts_of(change)))
    assert distance <= sensitivity(1.0)
    assert distance == pytest.approx(sensitivity(1.0), rel=1e-4)
