"""Closed-form classifiers: known answers, laws, and what is refused."""

from typing import Any

import pytest
import torch

from fed3r_app.core import (
    HeadOptions,
    RidgeStatistics,
    class_means,
    count_correct,
    predict,
    solve_head,
    solve_lda,
    solve_ridge,
)
from tests.harness.samples import Draw, assert_same, parts_of

EPS = torch.finfo(torch.float64).eps
columns = [lambda stats: solve_ridge(stats, 0.1), class_means]
solvers = pytest.mark.parametrize(
    "solve", [*columns, lambda stats: solve_lda(stats, 0.1)[0]]
)
# LDA does not divide by the norm of a class, and a mean of zero is like any other.
normalisers = pytest.mark.parametrize("solve", columns)
penalised = pytest.mark.parametrize("solve", [solve_ridge, solve_lda])


def test_a_two_by_two_system_solved_by_hand() -> None:
    # (A + I) W = b with A + I = [[2, 1], [1, 3]], whose inverse is
    # [[3, -1], [-1, 2]] / 5; so W = [[3, 8], [-1, -1]] / 5 for b = [[1, 3], [0, 1]].
    A, b = torch.tensor([[[1, 1], [1, 2]], [[1, 3], [0, 1]]]).double()
    stats = RidgeStatistics(A, b, torch.tensor([1, 1]))
    expected = torch.tensor([[3, 8], [-1, -1]], dtype=torch.float64) / 5
    W = solve_ridge(stats, 1.0, normalize=False)
    torch.testing.assert_close(W, expected, rtol=16 * EPS, atol=0)


@pytest.mark.parametrize("kind", ["normal", "relu"])
def test_columns_have_norm_one_and_keep_their_direction(draw: Draw, kind: str) -> None:
    stats = RidgeStatistics.of(*draw(kind, 60, 10, 4, 0), 4)
    W, raw = solve_ridge(stats, 0.3), solve_ridge(stats, 0.3, normalize=False)
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(W.norm(dim=0), ones, rtol=16 * EPS, atol=0)
    torch.testing.assert_close(W * raw.norm(dim=0), raw, rtol=16 * EPS, atol=0)


def test_the_intercept_is_divided_by_the_norm_of_the_others(draw: Draw) -> None:
    Z, y = draw("relu", 60, 9, 4, 0)
    Z[:, -1] = 1
    stats = RidgeStatistics.of(Z, y, 4)
    raw = solve_ridge(stats, 0.3, normalize=False)
    W = solve_ridge(stats, 0.3, intercept=True)
    expected = raw / raw[:-1].norm(dim=0)
    torch.testing.assert_close(W, expected, rtol=16 * EPS, atol=0)
    assert not torch.allclose(W.norm(dim=0), torch.ones(4, dtype=torch.float64))


@solvers
def test_a_class_without_samples_keeps_a_column_of_zeros(
    draw: Draw, solve: Any
) -> None:
    Z, y = draw("normal", 30, 5, 2, 0)
    W = solve(RidgeStatistics.of(Z, 2 * y, 4))
    assert not W[:, [1, 3]].any()
    assert torch.isfinite(W).all()


@normalisers
def test_a_class_of_blank_images_is_warned_about(solve: Any) -> None:
    Z = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    stats = RidgeStatistics.of(Z, torch.tensor([0, 1]), 2)
    with pytest.warns(UserWarning, match="norm 0: 1 class with samples, 1."):
        W = solve(stats)
    assert not W[:, 1].any()


@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_samples_stacked_twice_are_half_the_penalty(
    draw: Draw, kind: str, lam: Any
) -> None:
    Z, y = draw(kind, 40, 8, 3, 1)
    once = RidgeStatistics.of(Z, y, 3)
    twice = RidgeStatistics.of(torch.cat([Z, Z]), torch.cat([y, y]), 3)
    # (2A + 2 lam I) W = 2b is (A + lam I) W = b; cond(A + lam I) eps bounds the rest.
    condition = float(once.A.trace()) / lam + 1
    torch.testing.assert_close(
        solve_ridge(twice, 2 * lam, normalize=False),
        solve_ridge(once, lam, normalize=False),
        rtol=10 * condition * EPS,
        atol=10 * condition * EPS,
    )


@penalised
@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan"), float("inf")])
def test_a_penalty_that_is_not_positive_and_finite_is_refused(
    solve: Any, lam: Any
) -> None:
    with pytest.raises(ValueError, match=f"ridge-lambda must be > 0 .* got {lam}"):
        solve(RidgeStatistics.zeros(2, 2), lam)


@solvers
def test_statistics_of_no_samples_are_refused(solve: Any) -> None:
    with pytest.raises(ValueError, match="There are no samples in the statistics"):
        solve(RidgeStatistics.zeros(3, 2))


def test_a_penalty_lost_in_rounding_is_rescued_with_a_warning() -> None:
    # One direction of size 1e16 and a penalty of 1e-8: their sum rounds to A, which
    # is singular.
    Z = torch.full((1, 3), 1e8, dtype=torch.float64)
    stats = RidgeStatistics.of(Z, torch.tensor([0]), 1)
    with pytest.warns(UserWarning, match=r"is lost in rounding; .* was added"):
        W = solve_ridge(stats, 1e-8)
    assert torch.isfinite(W).all()


@penalised
@pytest.mark.parametrize("damage", [-1e6, float("nan")])
def test_damaged_statistics_are_refused(draw: Draw, solve: Any, damage: Any) -> None:
    stats = RidgeStatistics.of(*draw("normal", 20, 4, 2, 0), 2)
    stats.A[1, 1] = damage
    with pytest.raises(ValueError, match="Are the statistics damaged"):
        solve(stats, 0.1)


def test_the_discriminant_of_two_points_solved_by_hand() -> None:
    # Class 0 is -1 and 1, class 1 is 3 and 5: S_w = 4, and with lam = 4 Sigma = 2.
    Z = torch.tensor([[-1.0], [1.0], [3.0], [5.0]], dtype=torch.float64)
    stats = RidgeStatistics.of(Z, torch.tensor([0, 0, 1, 1]), 2)
    W, bias = solve_lda(stats, 4.0)
    # W = 0 / 2 and 4 / 2; bias = log(1 / 2) - m^2 / (2 Sigma) with m^2 = 0 and 16.
    half = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    expected = half - torch.tensor([0.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(W, torch.tensor([[0.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(bias, expected)


def test_an_absent_class_has_a_finite_bias_and_is_never_predicted(draw: Draw) -> None:
    Z, y = draw("normal", 30, 5, 2, 0)
    stats = RidgeStatistics.of(Z, 2 * y, 4)
    classifier = solve_head("lda", stats, HeadOptions(0.1))
    assert classifier.bias is not None
    assert torch.isfinite(classifier.bias).all()
    assert classifier.present.tolist() == [True, False, True, False]
    far = 100 * torch.cat([Z, -Z])  # scores of all signs
    assert set(classifier.predict(far).tolist()) == {0, 2}


def test_one_image_of_each_class_leaves_no_scatter_but_the_penalty() -> None:
    Z = torch.tensor([[1e4, 3.0], [7e3, 1.0]], dtype=torch.float64) / 7
    stats = RidgeStatistics.of(Z, torch.tensor([0, 1]), 2)
    W, bias = solve_lda(stats, 1.0)
    torch.testing.assert_close(W, 2 * Z.T, rtol=1e-6, atol=0)
    # S_w is rounding errors of A, as those of a sum in another order, and far above
    # this penalty: it is raised.
    stats.A[0, 0] *= 1 - 1e-15
    with pytest.warns(UserWarning, match=r"is lost in rounding; .* was added"):
        W, bias = solve_lda(stats, 1e-11)
    assert torch.isfinite(W).all() and torch.isfinite(bias).all()


@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
def test_class_means_are_those_of_a_plain_loop(draw: Draw, kind: str) -> None:
    Z, y = draw(kind, 40, 8, 3, 2)
    means = class_means(RidgeStatistics.of(Z, y, 3))
    for c in range(3):
        mean = torch.stack([z for z, k in zip(Z, y, strict=True) if k == c]).mean(0)
        # A mean of 40 values of size 1: cancellation leaves 40 eps at most.
        torch.testing.assert_close(
            means[:, c], mean / mean.norm(), rtol=0, atol=40 * EPS / float(mean.norm())
        )


def test_solving_leaves_the_statistics_alone(draw: Draw) -> None:
    stats = RidgeStatistics.of(*draw("normal", 20, 4, 2, 0), 2)
    before = RidgeStatistics(*parts_of(stats))
    solve_ridge(stats, 0.1)
    solve_lda(stats, 0.1)
    class_means(stats)
    assert_same(stats, before)


Z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
# The scores of classes 0 and 2 are all negative, so the zero of class 1 is the largest.
W = torch.tensor([[-1.0, 0.0, -2.0], [-2.0, 0.0, -1.0]], dtype=torch.float64)
PRESENT = torch.tensor([True, False, True])


def test_an_absent_class_is_not_predicted_though_its_score_is_the_largest() -> None:
    assert (Z @ W).argmax(dim=1).tolist() == [1, 1, 1]
    assert predict(Z[:2], W, PRESENT).tolist() == [0, 2]
    assert predict(Z[:2].half(), W, PRESENT).tolist() == [0, 2]
    # With all classes present the largest score wins.
    assert predict(Z, -W, torch.ones(3, dtype=torch.bool)).tolist() == [2, 0, 0]


def test_correct_predictions_are_counted() -> None:
    assert count_correct(Z[:2], torch.tensor([0, 2]), W, PRESENT) == 2
    assert count_correct(Z[:2], torch.tensor([0, 1]), W, PRESENT) == 1
    assert count_correct(Z[:0], torch.tensor([], dtype=torch.int64), W, PRESENT) == 0


def test_a_classifier_without_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one class with samples, got 0"):
        predict(Z, W, torch.zeros(3, dtype=torch.bool))
