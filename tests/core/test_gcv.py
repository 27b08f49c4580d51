"""The penalty from the statistics, against GCV by its definition."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fed3r_app.core import RidgeStatistics, gcv, select_lambda
from fed3r_app.core.gcv import _spectrum_by_tridiagonal
from tests.harness.samples import Draw, assert_same, parts_of

# The search ends on a grid of a fiftieth of a coarse step, ln(1e10) / 100: 0.0046.
RESOLUTION = 0.005


def naive_gcv(Z: Tensor, Y: Any, lam: Any) -> Any:
    """Return n ||(I - H) Y||^2 / tr(I - H)^2 with H = Z (Z'Z + lam I)^-1 Z'."""
    n, d = Z.shape
    H = Z @ np.linalg.solve(Z.T @ Z + lam * np.eye(d), Z.T)
    residual = np.eye(n) - H
    return n * np.square(residual @ Y).sum() / np.trace(residual) ** 2


def naive_lambda(Z: Tensor, Y: Any) -> Any:
    largest = np.linalg.norm(Z, 2) ** 2
    grid = np.logspace(-8, 2, 201) * largest
    best = int(np.argmin([naive_gcv(Z, Y, lam) for lam in grid]))
    fine = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, 200)], 101)
    return fine[np.argmin([naive_gcv(Z, Y, lam) for lam in fine])]


def draw_noisy_problem(n: int, d: int, seed: int, num_classes: int = 3) -> Any:
    """Return features whose classes are linear but for noise: some lam > 0 is best."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, d)) + 0.5
    scores = Z @ rng.normal(size=(d, num_classes)) / math.sqrt(d)
    y = (scores + rng.normal(size=scores.shape)).argmax(axis=1)
    return torch.from_numpy(Z), torch.from_numpy(y)


@pytest.mark.parametrize(
    ("n", "d"), [(60, 8), (60, 20), (30, 1), (30, 2), (21, 20), (20, 20), (12, 30)]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:ridge-lambda = 'auto' chose")
def test_the_penalty_minimises_gcv_by_its_definition(n: int, d: int, seed: int) -> None:
    Z, y = draw_noisy_problem(n, d, seed)
    Y = np.eye(3)[y.numpy()]
    lam = select_lambda(RidgeStatistics.of(Z, y, 3))
    expected = naive_lambda(Z.numpy(), Y)
    # At a flat minimum two grids part ways: then the errors must agree, to the
    # square of the resolution.
    near = abs(math.log(lam / expected)) <= 2 * RESOLUTION
    error, least = naive_gcv(Z.numpy(), Y, lam), naive_gcv(Z.numpy(), Y, expected)
    assert near or error <= least * (1 + RESOLUTION**2)


@pytest.mark.parametrize("n", [8, 20, 30])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:ridge-lambda = 'auto' chose")
def test_few_noisy_samples_do_not_ask_for_no_penalty(n: int, seed: int) -> None:
    # Labels are half noise: interpolating them can't be right. The textbook
    # difference of sums cancels to noise here and picks the lower end.
    Z, y = draw_noisy_problem(n, 40, seed + 10)
    largest = float(torch.linalg.matrix_norm(Z, 2)) ** 2
    lam = select_lambda(RidgeStatistics.of(Z, y, 3))
    assert lam > 1e-3 * largest


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.filterwarnings("error")
def test_repeated_images_do_not_ask_for_no_penalty(copies: Any) -> None:
    # n <= d with rank below n: the copies are predicted without error at lam = 0.
    Z, y = draw_noisy_problem(20, 40, seed=0)
    expected = select_lambda(RidgeStatistics.of(Z, y, 3))
    Z, y = torch.cat([Z, Z[:copies]]), torch.cat([y, y[:copies]])
    lam = select_lambda(RidgeStatistics.of(Z, y, 3))
    assert expected / 4 < lam < expected * 4


def test_rounded_statistics_of_few_samples_give_the_same_penalty() -> None:
    # float32 lifts the d - n eigenvalues of zero far above the rounding of float64.
    Z, y = draw_noisy_problem(20, 40, seed=0)
    stats = RidgeStatistics.of(Z, y, 3)
    rounded = RidgeStatistics(
        stats.A.float().double(), stats.b.float().double(), stats.counts
    )
    assert select_lambda(rounded) == pytest.approx(select_lambda(stats), rel=RESOLUTION)


@pytest.mark.parametrize(
    ("kind", "n", "d"),
    [("normal", 50, 2), ("relu", 50, 30), ("integer", 10, 30), ("relu", 200, 70)],
)
@pytest.mark.parametrize("num_classes", [1, 4, 100])
def test_the_two_spectra_agree(
    draw: Draw, kind: str, n: int, d: int, num_classes: int
) -> None:
    stats = RidgeStatistics.of(*draw(kind, n, d, num_classes, 0), num_classes)
    w, B2 = _spectrum_by_tridiagonal(stats)
    expected_w, U = torch.linalg.eigh(stats.A)
    expected_B2 = (U.T @ stats.b).square().sum(dim=1)
    # Backward stable: each eigenvalue moves by at most about d eps ||A||.
    rounding = d * torch.finfo(torch.float64).eps
    scale = float(expected_w.max())
    torch.testing.assert_close(w, expected_w, rtol=0, atol=rounding * scale)
    # Eigenvectors within a cluster are arbitrary; what GCV sums over them isn't.
    for lam in (1e-3 * scale, scale):
        torch.testing.assert_close(
            (B2 / (w + lam)).sum(),
            (expected_B2 / (expected_w + lam)).sum(),
            rtol=1e3 * 10 * rounding,
            atol=0,
        )


@pytest.mark.filterwarnings("ignore:ridge-lambda = 'auto' chose")
def test_the_statistics_are_left_alone(draw: Draw) -> None:
    stats = RidgeStatistics.of(*draw("normal", 30, 6, 2, 0), 2)
    before = RidgeStatistics(*parts_of(stats))
    select_lambda(stats)
    assert_same(stats, before)


def test_a_choice_at_an_end_is_warned_about() -> None:
    # One blank-free class on one axis each: exactly linear, no penalty is needed.
    linear = RidgeStatistics.of(torch.eye(3).repeat(5, 1), torch.arange(15) % 3, 3)
    # Every class sums to zero, so the features say nothing of the labels.
    Z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    unrelated = RidgeStatistics.of(Z, torch.tensor([0, 0, 1, 1]), 2)
    for stats, end in ((linear, 5e-8), (unrelated, 2e2)):
        with pytest.warns(UserWarning, match="an end of its range"):
            assert select_lambda(stats) == pytest.approx(end)


def test_features_of_zero_and_no_samples_are_refused() -> None:
    stats = RidgeStatistics.of(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), 2)
    with pytest.raises(ValueError, match="needs features other than zero"):
        select_lambda(stats)
    with pytest.raises(ValueError, match="needs samples, got none"):
        select_lambda(RidgeStatistics.zeros(3, 2))


def large_and_few(seed: int) -> RidgeStatistics:
    """Return statistics of ten images, each a hundred thousand times, in float32."""
    Z = np.maximum(np.random.default_rng(seed).normal(size=(10, 128)), 0)
    stats = RidgeStatistics.of(torch.tensor(Z), torch.arange(10), 10)
    A = (stats.A * 1e5).float().double()
    return RidgeStatistics(A, 1e5 * stats.b, 100_000 * stats.counts)


@pytest.mark.parametrize("seed", [79, 289])
@pytest.mark.filterwarnings("ignore:ridge-lambda|LAPACK's dstemr failed")
def test_spectra_that_the_fastest_routine_gives_up_have_a_penalty_too(
    seed: int,
) -> None:
    stats = large_and_few(seed)
    w, _ = gcv.spectrum(stats)
    expected = torch.linalg.eigvalsh(stats.A)
    torch.testing.assert_close(w, expected, rtol=1e-9, atol=1e-12 * float(w.max()))
    assert select_lambda(stats) > 0


def test_the_slower_way_gives_the_same_penalty(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = RidgeStatistics.of(*draw("relu", 60, 20, 3, 1), 3)
    expected = select_lambda(stats)

    def fail(*_: Any) -> Any:
        raise np.linalg.LinAlgError("LAPACK's dstemr failed with 22.")

    monkeypatch.setattr(gcv, "eigen_tridiagonal", fail)
    with pytest.warns(UserWarning, match="dstemr failed with 22. Eigenvalues by a slo"):
        assert select_lambda(stats) == pytest.approx(expected, rel=RESOLUTION)
