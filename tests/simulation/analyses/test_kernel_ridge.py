"""Exact kernel ridge regression: by hand, against the primal, and as a limit."""

import math

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from fed3r_app.core import RandomFeatures, RidgeStatistics, select_lambda, solve_ridge
from simulation.analyses.kernel_ridge import rbf_kernel, select_dual_lambda, solve_dual


def draw(n: int, d: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return features around class centres, and labels; every class is there."""
    random = np.random.default_rng(seed)
    y = np.concatenate([np.arange(num_classes), random.integers(num_classes, size=n)])
    centres = 3 * random.normal(size=(num_classes, d))
    Z = centres[y] + random.normal(size=(len(y), d))
    return torch.from_numpy(Z), torch.from_numpy(y)


def test_two_points_solved_by_hand() -> None:
    # K = [[1, k], [k, 1]] and Y = I, so alpha is the inverse of [[1 + lam, k], ...].
    Z, y = torch.tensor([[0.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1])
    sigma, lam = 2.0, 0.5
    k = math.exp(-(2.0**2) / (2 * sigma**2))
    determinant = (1 + lam) ** 2 - k**2
    inverse = torch.tensor([[1 + lam, -k], [-k, 1 + lam]], dtype=torch.float64)
    expected = inverse / determinant
    K = rbf_kernel(Z, Z, sigma)
    assert torch.allclose(solve_dual(K, y, 2, lam, normalize=False), expected)
    # Symmetric: both norms are equal, and the midpoint is where the classes meet.
    X = torch.tensor([[0.9], [1.1]], dtype=torch.float64)
    scores = rbf_kernel(X, Z, sigma) @ solve_dual(K, y, 2, lam)
    assert scores.argmax(dim=1).tolist() == [0, 1]


def test_the_dual_of_a_linear_kernel_is_the_primal_solution() -> None:
    Z, y = draw(30, 50, 4, seed=0)
    stats = RidgeStatistics.of(Z, y, 4)
    for normalize in (False, True):
        alpha = solve_dual(Z @ Z.T, y, 4, 0.3, normalize)
        W = solve_ridge(stats, 0.3, normalize)
        assert torch.allclose(Z.T @ alpha, W, rtol=0, atol=1e-10)


def test_the_dual_penalty_is_that_of_the_primal() -> None:
    Z, y = draw(30, 50, 4, seed=1)
    primal = select_lambda(RidgeStatistics.of(Z, y, 4))
    dual = select_dual_lambda(Z @ Z.T, y, 4)
    assert dual == pytest.approx(primal, rel=1e-6)
    alpha = solve_dual(Z @ Z.T, y, 4, lam=None)
    assert torch.equal(alpha, solve_dual(Z @ Z.T, y, 4, dual))


def test_the_kernel_is_that_of_its_definition_far_from_the_origin() -> None:
    Z, _ = draw(10, 3, 2, seed=2)
    X, Z = Z[:4] + 1e4, Z + 1e4
    expected = [
        [math.exp(-float((x - z).square().sum()) / (2 * 1.5**2)) for z in Z] for x in X
    ]
    # Distances of some 10 beside coordinates of 1e4: known to 1e4 eps.
    assert np.allclose(rbf_kernel(X, Z, 1.5).numpy(), expected, rtol=0, atol=1e-10)


def test_scores_are_those_of_scikit_learn() -> None:
    Z, y = draw(40, 5, 3, seed=3)
    sigma, lam = 2.0, 0.1
    reference = KernelRidge(alpha=lam, kernel="rbf", gamma=1 / (2 * sigma**2))
    reference.fit(Z.numpy(), np.eye(3)[y.numpy()])
    X, _ = draw(20, 5, 3, seed=4)
    alpha = solve_dual(rbf_kernel(Z, Z, sigma), y, 3, lam, normalize=False)
    ours = rbf_kernel(X, Z, sigma) @ alpha
    assert np.allclose(ours.numpy(), reference.predict(X.numpy()), rtol=0, atol=1e-8)


def test_random_features_converge_to_the_kernel() -> None:
    Z, y = draw(60, 4, 3, seed=5)
    X, _ = draw(200, 4, 3, seed=6)
    sigma, lam = 3.0, 0.5
    limit = rbf_kernel(X, Z, sigma) @ solve_dual(rbf_kernel(Z, Z, sigma), y, 3, lam)

    def error(D: int) -> tuple[float, int]:
        squared, disagree = 0.0, 0
        for seed in range(5):
            phi = RandomFeatures(4, D, sigma, seed)
            W = solve_ridge(RidgeStatistics.of(phi(Z), y, 3), lam)
            scores = phi(X) @ W
            squared += float((scores - limit).square().mean())
            disagree += int((scores.argmax(dim=1) != limit.argmax(dim=1)).sum())
        return math.sqrt(squared / 5), disagree

    few, many = error(100), error(1600)
    # The error falls as 1 / sqrt(D): to a quarter, give or take what 5 draws leave.
    assert many[0] < few[0] / 2.5
    assert many[1] < few[1]


def test_a_bad_width_is_refused() -> None:
    with pytest.raises(ValueError, match="rf-sigma must be > 0, got 0"):
        rbf_kernel(torch.zeros(1, 1), torch.zeros(1, 1), 0)
