"""The claim of the method: no split and no order of the clients shows in W and bias."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import Tensor

from fed3r_app.core import RidgeStatistics, RunningSum, solve_lda, solve_ridge
from tests.harness.samples import Draw, make_factor

N, D, C, LAM = 160, 24, 6, 0.5
# Cuts at equal places make empty clients, neighbouring ones clients of one image.
CUTS = st.lists(st.integers(0, N), max_size=40)
KINDS = st.sampled_from(["normal", "relu", "integer"])


def relative_difference(one: Any, other: Any) -> float:
    return float((one - other).norm() / other.norm())


def make_clients(
    Z: Tensor, y: Tensor, cuts: Any, order_seed: Any
) -> list[tuple[Tensor, Tensor]]:
    order = np.random.default_rng(order_seed).permutation(N)
    Z, y = Z[order], y[order]
    bounds = sorted(cuts)
    clients = list(zip(Z.tensor_split(bounds), y.tensor_split(bounds), strict=True))
    np.random.default_rng(order_seed + 1).shuffle(clients)
    return clients


@settings(max_examples=60)
@given(kind=KINDS, seed=st.integers(0, 99), cuts=CUTS, order=st.integers(0, 99))
def test_any_split_in_any_order_gives_the_pooled_solution(
    draw: Draw, kind: str, seed: int, cuts: Any, order: Any
) -> None:
    Z, y = draw(kind, N, D, C, seed)
    pooled = RidgeStatistics.of(Z, y, C)
    # cond(A + lam I) <= trace / lam + 1, below 1e4 here: times eps (2e-16) that is
    # 2e-12, which leaves sums of 160 terms ample room under the promised 1e-9.
    assert float(pooled.A.trace()) / LAM < 1e4
    expected = [solve_ridge(pooled, LAM), *solve_lda(pooled, LAM)]

    clients = make_clients(Z, y, cuts, order)
    total = sum(
        (RidgeStatistics.of(*client, C) for client in clients),
        start=RidgeStatistics.zeros(D, C),
    )
    running = RunningSum(RidgeStatistics.zeros(D, C))
    for client in clients:
        running.add(make_factor(*client, C))

    for stats in (total, running.value()):
        assert torch.equal(stats.counts, pooled.counts)
        found = [solve_ridge(stats, LAM), *solve_lda(stats, LAM)]
        for one, other in zip(found, expected, strict=True):
            assert relative_difference(one, other) <= 1e-9


@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
@pytest.mark.parametrize("lam", [0.01, 1.0, 100.0])
def test_the_solution_is_that_of_scikit_learn(draw: Draw, kind: str, lam: Any) -> None:
    Z, y = draw(kind, 300, 40, 5, seed=3)
    ridge = Ridge(alpha=lam, fit_intercept=False, solver="cholesky")
    ridge.fit(Z.numpy(), np.eye(5)[y.numpy()])
    W = solve_ridge(RidgeStatistics.of(Z, y, 5), lam, normalize=False)
    # cond(A + lam I) < 1e6, times eps: 1e-10.
    assert relative_difference(W, torch.from_numpy(ridge.coef_.T)) <= 1e-8


def test_scikit_learn_agrees_on_pooled_features_of_single_image_clients(
    draw: Draw,
) -> None:
    Z, y = draw("relu", 50, 80, 4, seed=4)
    total = RunningSum(RidgeStatistics.zeros(80, 4))
    for row in range(50):
        total.add(make_factor(Z[row : row + 1], y[row : row + 1], 4))
    ridge = Ridge(alpha=0.1, fit_intercept=False, solver="svd")
    ridge.fit(Z.numpy(), np.eye(4)[y.numpy()])
    W = solve_ridge(total.value(), 0.1, normalize=False)
    assert relative_difference(W, torch.from_numpy(ridge.coef_.T)) <= 1e-8


class Shrunken:
    """The covariance of a class of n_c, such that their mean is (S_w + lam I) / n.

    scikit-learn weights them by the shares n_c / n, and centres each class itself.
    """

    def __init__(self, shrinkage: float) -> None:
        self.shrinkage = shrinkage  # lam / n

    def fit(self, X: Any) -> None:
        covariance = np.cov(X, rowvar=False, bias=True)
        self.covariance_ = covariance + self.shrinkage * np.eye(X.shape[1])


@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
@pytest.mark.parametrize("lam", [0.1, 1.0, 100.0])
def test_the_discriminant_is_that_of_scikit_learn(
    draw: Draw, kind: str, lam: Any
) -> None:
    Z, y = draw(kind, 300, 40, 5, seed=3)
    y[y == 4] = torch.arange(int((y == 4).sum())) % 2  # classes of different sizes
    Z, y = Z[y < 4], y[y < 4]
    lda = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=Shrunken(lam / len(y))
    )
    lda.fit(Z.numpy(), y.numpy())
    W, bias = solve_lda(RidgeStatistics.of(Z, y, 4), lam)
    # cond(S_w + lam I) < 1e5, and cancellation takes no more digits: 1e-10.
    assert relative_difference(W, torch.from_numpy(lda.coef_.T)) <= 1e-8
    assert relative_difference(bias, torch.from_numpy(lda.intercept_)) <= 1e-8
