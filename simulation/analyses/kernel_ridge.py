"""Exact kernel ridge regression, which random features approximate.

In the features phi of a kernel k the ridge classifier is W_c = sum_i alpha_ic phi(z_i)
with alpha = (K + lam I)^-1 Y and K_ij = k(z_i, z_j): n equations, so for subsets only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fed3r_app.core.gcv import minimise_gcv, spectrum
from fed3r_app.core.heads import solve_ridge
from fed3r_app.core.statistics import RidgeStatistics


def rbf_kernel(X: Tensor, Z: Tensor, sigma: float) -> Tensor:
    """Return exp(-||x - z||^2 / (2 sigma^2)) for all rows of X (m, d) and Z (n, d)."""
    if not sigma > 0:
        raise ValueError(f"rf-sigma must be > 0, got {sigma!r}.")
    # Distances don't depend on the origin; around the mean they cancel least.
    origin = Z.mean(dim=0)
    X, Z = X - origin, Z - origin
    # ||x - z||^2 = ||x||^2 + ||z||^2 - 2 x'z, which rounding can make negative.
    squares = X.square().sum(dim=1)[:, None] + Z.square().sum(dim=1)
    distances = squares.addmm_(X, Z.T, alpha=-2).clamp_(min=0)
    return distances.mul_(-1 / (2 * sigma**2)).exp_()


def solve_dual(
    K: Tensor, y: Tensor, num_classes: int, lam: float | None, normalize: bool = True
) -> Tensor:
    """Return alpha (n, C) = (K + lam I)^-1 Y; the scores of z are k(z, Z) alpha.

    K (n, n), in float64, holds the inner products of the training samples in the
    kernel's features, y (n,) their labels. A penalty of None is chosen by generalised
    cross-validation. Normalised, each class's weights are divided by their norm in the
    kernel's features, ||W_c||^2 = alpha_c' K alpha_c, as ``solve_ridge`` does.
    """
    lam = select_dual_lambda(K, y, num_classes) if lam is None else lam
    alpha = solve_ridge(_as_statistics(K, y, num_classes), lam, normalize=False)
    if not normalize:
        return alpha
    norms = (alpha * (K @ alpha)).sum(dim=0).clamp(min=0).sqrt()
    return alpha / torch.where(norms > 0, norms, torch.ones_like(norms))


def select_dual_lambda(K: Tensor, y: Tensor, num_classes: int) -> float:
    """Return the penalty that ``select_lambda`` would choose, from K (n, n) alone."""
    w, projected = spectrum(_as_statistics(K, y, num_classes))
    largest = float(w.max())
    kept = w > len(K) * torch.finfo(torch.float64).eps * largest
    # A = Z'Z has the eigenvalues w of K = ZZ' = V diag(w) V', and U'b = sqrt(w) V'Y.
    B2 = w * projected
    return minimise_gcv(w[kept], B2[kept], int(kept.sum()), largest).lam


def _as_statistics(K: Tensor, y: Tensor, num_classes: int) -> RidgeStatistics:
    """Return the dual problem in the form of the primal one: A = K, b = Y."""
    Y = torch.nn.functional.one_hot(y, num_classes).to(torch.float64)
    return RidgeStatistics(K, Y, torch.bincount(y, minlength=num_classes))
