"""Statistics of no samples are told from those of some, whatever form they have."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fed3r_app.core import (
    FeatureMap,
    InconsistentStatistics,
    Limits,
    RidgeStatistics,
    check_contribution,
)
from tests.harness.samples import Draw, make_factor

D, C = 7, 4
RELU6 = Limits.of(FeatureMap(D), (0.0, 6.0))


@pytest.fixture
def samples(draw: Draw) -> Any:
    Z, y = draw("relu", 12, D, C - 1, seed=3)
    return Z.clamp(max=6), y


@pytest.fixture
def stats(samples: tuple[Tensor, Tensor]) -> Any:
    return RidgeStatistics.of(*samples, C)


@pytest.fixture
def factor(samples: tuple[Tensor, Tensor]) -> Any:
    return make_factor(*samples, C)


def refuses(contribution: Any, match: str, limits: Any = RELU6) -> None:
    with pytest.raises(InconsistentStatistics, match=match):
        check_contribution(contribution, limits)


def changed(contribution: Any, **arrays: Any) -> Any:
    return dataclasses.replace(contribution, **arrays)


def test_class_sums_that_need_more_than_the_matrix_has_are_refused(
    stats: Any, factor: Any
) -> None:
    check_contribution(stats, RELU6)
    check_contribution(factor, RELU6)
    refuses(changed(stats, b=1.5 * stats.b), "A and b must be of the same")
    refuses(changed(factor, S=1.5 * factor.S), "A and b must be of the same")
    refuses(changed(stats, A=0.5 * stats.A), "A and b must be of the same")
    # As are counts that are too small for the sums.
    refuses(changed(stats, counts=stats.counts.clamp(max=1)), "A and b must be")
    refuses(changed(factor, counts=factor.counts.clamp(max=1)), "A and b must be")


def test_a_direction_hidden_from_the_diagonal_is_found() -> None:
    # Two features that are equal in b and opposite in A: each alone looks right.
    Z = torch.tensor([[1.0, -1.0], [1.0, -1.0], [2.0, -2.0]], dtype=torch.float64)
    stats = RidgeStatistics.of(Z, torch.zeros(3, dtype=torch.int64), 1)
    lie = changed(stats, b=stats.b.abs())
    refuses(lie, "must be positive semidefinite", Limits())


def test_an_indefinite_matrix_is_refused(stats: Any) -> None:
    A = stats.A.clone()
    A[1, 2] = A[2, 1] = 2 * (A[1, 1] * A[2, 2]).sqrt() + 1
    refuses(changed(stats, A=A), "must be positive semidefinite")
    A = stats.A.clone()
    A[1, 1] = -1
    refuses(changed(stats, A=A), "A and b must be of the same")


def test_a_factor_whose_rows_and_class_sums_disagree_is_refused(factor: Any) -> None:
    # R shrinks in the direction of few features: the columns of b still fit A_jj.
    S = factor.S.clone()
    S[-1] = 3.0 * factor.counts.sqrt()
    R = factor.R.clone()
    R[-1] *= 1e-3
    refuses(changed(factor, S=S, R=R), "must be positive semidefinite", Limits())


def test_a_matrix_without_samples_is_refused() -> None:
    nothing = RidgeStatistics.zeros(D, C)
    check_contribution(nothing, RELU6)
    lie = changed(nothing, A=torch.eye(D, dtype=torch.float64))
    refuses(lie, "must have no scatter, got 7", Limits())


def test_one_sample_of_each_class_has_no_scatter(samples: Any) -> None:
    Z, _ = samples
    stats = RidgeStatistics.of(Z[:3], torch.arange(3), C)
    check_contribution(stats, RELU6)
    bump = torch.zeros(D, D, dtype=torch.float64)
    bump[1, 1] = 0.1
    refuses(changed(stats, A=stats.A + bump), "must have no scatter, got 0.1")


@pytest.mark.parametrize("value", [-0.1, 6.1])
def test_features_out_of_range_are_refused(samples: Any, value: Any) -> None:
    Z, y = samples
    Z[y == 1, 2] = value
    for contribution in (RidgeStatistics.of(Z, y, C), make_factor(Z, y, C)):
        refuses(contribution, r"Features must lie in \[0, 6.001\], got class means of")
        check_contribution(contribution, Limits())


def test_one_feature_out_of_range_shows_in_the_squares(samples: Any) -> None:
    Z, y = samples
    Z[0, 1] = 40.0  # the mean of its class stays below 6
    Z[1:, 1] = 0.0
    y[:] = 0
    stats = RidgeStatistics.of(Z, y, C)
    refuses(stats, r"A must be <= .* for feature 1 in \[0, 6.001\]")


def test_opposite_signs_show_off_the_diagonal(stats: Any) -> None:
    A = stats.A.clone()
    A[1, 2] = A[2, 1] = -1e-3
    refuses(changed(stats, A=A), "A must be >= 0, as features >= 0 have it")


def test_longer_features_than_agreed_are_refused(stats: Any, factor: Any) -> None:
    norm = math.sqrt(float(stats.A.trace()) / stats.n)
    for contribution in (stats, factor):
        check_contribution(contribution, Limits(norm=norm))
        refuses(contribution, r"trace\(A\) must be <= n B", Limits(norm=0.99 * norm))


def test_more_samples_than_agreed_are_refused(stats: Any, factor: Any) -> None:
    for contribution in (stats, factor):
        check_contribution(contribution, Limits(max_samples=12))
        fewer = Limits(max_samples=11)
        refuses(contribution, "n must be <= max-client-samples = 11, got 12", fewer)


def test_an_intercept_must_be_ones(samples: Any) -> None:
    Z, y = samples
    feature_map = FeatureMap(D, intercept=True)
    limits = Limits.of(feature_map, (0.0, 6.0))
    check_contribution(RidgeStatistics.of(feature_map(Z), y, C), limits)
    twos = feature_map(Z)
    twos[:, -1] = 2
    refuses(RidgeStatistics.of(twos, y, C), r"Features must lie in \[1, 1\]", limits)


def test_random_features_have_a_range_whatever_the_backbone(samples: Any) -> None:
    Z, y = samples
    feature_map = FeatureMap(D, rf_dim=50, rf_sigma=2.0)
    limits = Limits.of(feature_map, None)
    check_contribution(RidgeStatistics.of(feature_map(Z), y, C), limits)
    moved = RidgeStatistics.of(feature_map(Z) + 0.5, y, C)
    refuses(moved, "Features must lie in", limits)


def test_a_wide_matrix_is_checked_on_features_nobody_foresees() -> None:
    d = 2600
    Z = torch.zeros(2, d, dtype=torch.float64)
    stats = RidgeStatistics.of(Z, torch.zeros(2, dtype=torch.int64), 1)
    check_contribution(stats, Limits())
    # Every pair of features disagrees: any choice of them shows it.
    A = torch.full((d, d), -1.0, dtype=torch.float64)
    A.fill_diagonal_(1.0)
    refuses(changed(stats, A=A), "must be positive semidefinite", Limits())


def test_torch_has_its_threads_again_whatever_came_of_it(factor: Any) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        check_contribution(factor, RELU6)
        assert torch.get_num_threads() == 2
        refuses(changed(factor, S=2 * factor.S), "must be of the same")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
