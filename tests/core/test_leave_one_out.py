"""Training images left out of a ridge classifier, by one number for all of them."""

from __future__ import annotations

import pytest
import torch

from fed3r_app.core import LeaveOneOut, RidgeStatistics, solve_ridge

N, C = 12, 3
LABELS = torch.arange(N) % C


def alike(seed: int = 0) -> torch.Tensor:
    """Return features (n, d) of the same leverage: orthogonal, and of one length."""
    random = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(
        torch.randn(20, N, generator=random, dtype=torch.float64), mode="reduced"
    )
    alike: torch.Tensor = 3 * Q.T
    return alike


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("lam", [0.1, 1.0, 100.0])
def test_it_is_what_a_classifier_without_the_image_says(
    normalize: bool, lam: float
) -> None:
    Z = alike()
    stats = RidgeStatistics.of(Z, LABELS, C)
    W = solve_ridge(stats, lam, normalize)
    raw = solve_ridge(stats, lam, normalize=False)
    norms = raw.norm(dim=0) if normalize else torch.ones(C, dtype=torch.float64)
    got = LeaveOneOut.of(stats, W, lam).logits(Z @ W, LABELS)
    for i in range(N):
        others = torch.arange(N) != i
        without = RidgeStatistics.of(Z[others], LABELS[others], C)
        expected = Z[i] @ solve_ridge(without, lam, normalize=False) / norms
        torch.testing.assert_close(got[i], expected, atol=1e-9, rtol=1e-9)


def test_the_leverage_is_the_share_of_the_degrees_of_freedom() -> None:
    random = torch.Generator().manual_seed(1)
    Z = torch.randn(50, 8, generator=random, dtype=torch.float64)
    y = torch.arange(50) % C
    stats, lam = RidgeStatistics.of(Z, y, C), 5.0
    A = Z.T @ Z
    freedom = torch.trace(A @ torch.linalg.inv(A + lam * torch.eye(8)))
    left_out = LeaveOneOut.of(stats, solve_ridge(stats, lam), lam)
    assert left_out.leverage == pytest.approx(float(freedom) / 50)


def test_a_class_without_images_has_no_scale_and_all_fitted_is_bounded() -> None:
    Z = torch.eye(4, dtype=torch.float64) * 1e6
    stats = RidgeStatistics.of(Z, torch.tensor([0, 1, 0, 1]), C)
    left_out = LeaveOneOut.of(stats, solve_ridge(stats, 1e-9), 1e-9)
    assert left_out.scale[2] == 0
    assert left_out.leverage < 1
    logits = left_out.logits(torch.zeros(4, C), torch.tensor([0, 1, 0, 1]))
    assert logits.isfinite().all()
