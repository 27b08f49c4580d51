"""The clients' shares add up to the noise that the budget asks for."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.privacy.gaussian import PrivacyBudget, sensitivity
from fed3r_app.privacy.release import add_noise_share, round_counts
from fed3r_app.privacy.secagg import FixedPointEncoding, IntegerStatistics

D, C, T = 30, 4, 5


@pytest.fixture
def grid() -> Any:
    return FixedPointEncoding(FeatureMap(D, norm=1.0), 1.0, 2**10)


def nothing() -> Any:
    return IntegerStatistics(
        np.zeros(D * (D + 1) // 2, np.int64),
        np.zeros((D, C), np.int64),
        np.zeros(C, np.int64),
    )


def add_up(parts: Any) -> Any:
    vector = parts[0].vector().copy()
    for part in parts[1:]:
        vector += part.vector()
    return IntegerStatistics.from_vector(vector, D, C)


def test_shares_of_as_many_as_calibrated_for_have_the_deviation_of_the_whole(
    grid: Any,
) -> None:
    sigma = PrivacyBudget(1.0, 1e-5).distributed_sigma()
    sums = [
        round_counts(
            add_up(
                [
                    add_noise_share(nothing(), sigma / math.sqrt(T), grid.bits)
                    for _ in range(T)
                ]
            ),
            grid.bits,
        ).statistics(grid)
        for _ in range(60)
    ]
    A = torch.stack([stats.A for stats in sums])
    assert torch.equal(A, A.mT)
    upper = torch.triu(torch.ones(D, D), 1).bool()
    for values, expected in (
        (A[:, ~upper & ~upper.T], sigma),
        (A[:, upper], sigma / math.sqrt(2)),
        (torch.stack([stats.b for stats in sums]), sigma),
        (
            torch.stack([stats.counts for stats in sums]).double(),
            math.hypot(sigma, 12**-0.5),  # rounded once, to whole samples
        ),
    ):
        tolerance = 5 / math.sqrt(2 * values.numel())
        assert float(values.std()) == pytest.approx(expected, rel=tolerance)
        assert abs(float(values.mean())) < 5 * expected / math.sqrt(values.numel())


def test_small_shares_of_the_counts_are_not_rounded_away(grid: Any) -> None:
    shares = [add_noise_share(nothing(), 0.1, grid.bits) for _ in range(1000)]
    total = add_up(shares).counts * 2.0**-grid.bits
    deviation = 0.1 * math.sqrt(1000)
    assert 0 < np.abs(total).max() < 6 * deviation
    assert np.std([s.counts for s in shares]) == pytest.approx(
        0.1 * 2.0**grid.bits, rel=0.1
    )


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
    assert isinstance(change, RidgeStatistics)
    distance = math.sqrt(
        float((change.A**2).sum() + (change.b**2).sum() + (change.counts**2).sum())
    )
    assert distance <= sensitivity(1.0)
    assert distance == pytest.approx(sensitivity(1.0), rel=1e-4)
