"""The ridge penalty from the statistics alone, by generalised cross-validation.

With A = U diag(w) U' and B2_i = ||(U'b)_i||^2, everything that GCV needs is known at
the server: no validation data, no extra round.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from fed3r_app.core.lapack import eigen_tridiagonal, tridiagonalise
from fed3r_app.core.statistics import RidgeStatistics

# The search covers these multiples of the largest eigenvalue of A. Below, a penalty is
# lost in the rounding of float32 uploads; above, W has the directions of b, the class
# means.
_LOWEST, _HIGHEST = 1e-8, 1e2
# Ten points a decade, then a hundred between the neighbours of the best: lam is known
# to half a percent, and GCV is flat around its minimum.
_GRID = 101


class Penalty(NamedTuple):
    """The best penalty, and its error by generalised cross-validation."""

    lam: float
    error: float  # estimates the squared error of one-hot predictions, per sample


def select_lambda(stats: RidgeStatistics) -> float:
    """Return the lam that minimises the generalised cross-validation error."""
    return select_penalty(stats).lam


def select_penalty(stats: RidgeStatistics) -> Penalty:
    """Return the lam that minimises the generalised cross-validation error, and that.

    GCV(lam) = n RSS / (n - df)^2, with the residual sum of squares and the degrees
    of freedom of the ridge solution, searched on [1e-8, 1e2] times the largest
    eigenvalue of A; a minimum at an end is warned about.
    """
    if stats.n == 0:
        raise ValueError("ridge-lambda = 'auto' needs samples, got none.")
    w, B2 = spectrum(stats)
    largest = float(w.max())
    if not largest > 0:
        raise ValueError(
            "ridge-lambda = 'auto' needs features other than zero. Is the backbone "
            "damaged?"
        )
    # The rank is at most n: with n < d what lies below the n largest is rounding,
    # which float32 uploads lift far above that of float64.
    w, B2 = w[-stats.n :], B2[-stats.n :]
    kept = w > stats.d * torch.finfo(torch.float64).eps * largest
    # With n <= d only images that repeat others make the rank r fall short of n. The
    # copies would be predicted without error and drive lam to 0: r images count.
    n = stats.n if stats.n > stats.d else int(kept.sum())
    return minimise_gcv(w[kept], B2[kept], n, largest)


def gcv_error(lam: Tensor, w: Tensor, B2: Tensor, n: int) -> Tensor:
    """Return GCV for each penalty lam (g,), in a form that survives n <= d.

    Of n samples, w and B2 (r,) are the positive eigenvalues of A and the squared norms
    of the rows of U'b.
    """
    r = len(w)
    # What no W explains. With n <= r everything can be explained, and the textbook
    # difference of sums would be rounding noise, sometimes negative.
    unexplained = 0.0 if n <= r else max(n - float((B2 / w).sum()), 0.0)
    shrunk = lam[:, None] / (w + lam[:, None])
    # lam^2 B2 / (w (w + lam)^2) is what the penalty leaves unexplained.
    rss = unexplained + (shrunk.square() * (B2 / w)).sum(dim=1)
    # n - df = n - sum w / (w + lam) = (n - r) + sum lam / (w + lam).
    residual_freedom = max(n - r, 0) + shrunk.sum(dim=1)
    return n * rss / residual_freedom.square()


def minimise_gcv(w: Tensor, B2: Tensor, n: int, largest: float) -> Penalty:
    """Return the best penalty of a coarse grid, refined around its minimum."""
    low, high = math.log(_LOWEST * largest), math.log(_HIGHEST * largest)
    for refined in (False, True):
        logs = torch.linspace(low, high, _GRID, dtype=torch.float64, device=w.device)
        errors = gcv_error(logs.exp(), w, B2, n)
        best = int(errors.argmin())
        if not refined and best in (0, _GRID - 1):
            warnings.warn(
                f"ridge-lambda = 'auto' chose {math.exp(float(logs[best])):.3g}, an "
                "end of its range: the data don't determine it. Consider setting it.",
                stacklevel=3,
            )
        low, high = float(logs[max(best - 1, 0)]), float(logs[min(best + 1, _GRID - 1)])
    return Penalty(math.exp(float(logs[best])), float(errors[best]))


def spectrum(stats: RidgeStatistics) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues w (d,) of A, ascending, and B2 (d,)."""
    if stats.A.device.type == "cpu":
        try:
            return _spectrum_by_tridiagonal(stats)
        # The fastest routine gives up on some spectra, of few directions that are far
        # larger than all others; the slower one does not.
        except np.linalg.LinAlgError as error:
            warnings.warn(f"{error} Eigenvalues by a slower way.", stacklevel=2)
    w, U = torch.linalg.eigh(stats.A)
    return w, (U.T @ stats.b).square().sum(dim=1)


def _spectrum_by_tridiagonal(stats: RidgeStatistics) -> tuple[Tensor, Tensor]:
    """Return the spectrum without the eigenvectors of A.

    A = Q T Q' with T tridiagonal and T = V diag(w) V' give U'b = V'(Q'b): the d x d
    product U = QV, which takes most of a full eigendecomposition, is never formed.
    """
    d = stats.d
    if d == 1:
        return stats.A[0], stats.b.square().sum(dim=1)
    # A is symmetric, so its transpose is A in the order that LAPACK wants.
    packed, diagonal, off_diagonal, tau = tridiagonalise(stats.A.numpy().T)
    # Q is a product of reflectors, stored below the subdiagonal; its first row and
    # column are those of I. Starting one number later in the same memory, they are
    # the columns of a d x (d - 1) matrix: no copy.
    reflectors = packed.ravel(order="F")[1 : 1 + d * (d - 1)]
    b = stats.b.numpy()
    reflected, _, _ = lapack.dormqr(
        "L",
        "T",
        reflectors.reshape(d, d - 1, order="F"),
        tau,
        b[1:],
        lwork=64 * max(b.shape[1], d),  # for blocks of up to 64 reflectors
    )
    del packed, reflectors  # before V, which is as large
    w, V = eigen_tridiagonal(diagonal, off_diagonal)
    B2 = np.square(V.T @ np.concatenate([b[:1], reflected])).sum(axis=1)
    return torch.from_numpy(w), torch.from_numpy(B2)
