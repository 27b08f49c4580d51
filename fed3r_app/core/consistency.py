r"""Whether statistics can be those of samples at all, and of samples within limits.

With n_c samples of class c, the scatter within the classes is a sum of squares:

    M = A - b diag(1/n_c) b' = sum_c sum_{i in c} (z_i - m_c)(z_i - m_c)'  >=  0

and every bound on a sample's features gives one on their sums. Statistics that fail
are those of no samples. Those that pass may still be invented: no check can find that.

What honest clients send is rounded, so each rule holds up to a slack. With unit
roundoff u of what travelled, a column R_j of a factor is off by u ||R_j|| at most and
X = S diag(n_c)^-1/2, of norm 1, by u sqrt(C_k) in the Frobenius norm. Hence A_jj is off
by 2u A_jj, b_jc by 2u sqrt(A_jj n_c), M_jj by (2 + 4 sqrt(C_k)) u A_jj; A and b that
travel as they are, by less. The float64 sums and QR before it add n + d roundings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fed3r_app.core.feature_map import Limits
from fed3r_app.core.statistics import Contribution

_EPS = torch.finfo(torch.float64).eps
# Operations that take well under half a second on one core: at some 1e10 a second.
_AFFORDABLE = 4e9
# Up to so many rows one thread is faster: to wake others takes longer than the work.
_FEW_ROWS = 64


class InconsistentStatistics(ValueError):
    """Statistics of no samples, or of none within the limits."""


def check_contribution(
    contribution: Contribution, limits: Limits, dtype: torch.dtype = torch.float64
) -> None:
    """Raise InconsistentStatistics unless they can be those of samples within limits.

    The contribution is finite, of matching shapes, with counts >= 0, and on the CPU. It
    travelled in ``dtype``, whose rounding is to be forgiven.
    """
    n = contribution.n
    if limits.max_samples and n > limits.max_samples:
        raise InconsistentStatistics(
            f"n must be <= max-client-samples = {limits.max_samples}, got {n}."
        )
    with _one_thread_if_small(contribution):
        sums = _Sums(contribution, dtype)
        _check_scatter(sums, n)
        if limits.norm < math.inf:
            _check_trace(sums, n, limits.norm)
        if limits.low is not None and limits.high is not None:
            _check_range(sums, n, limits.low, limits.high)
        if limits.low is not None and bool((limits.low >= 0).all()):
            # Products of features >= 0 add up to no less, rounded or not.
            least = contribution.least_entry()
            if least is not None and least < 0:
                raise InconsistentStatistics(
                    f"A must be >= 0, as features >= 0 have it, got {least:.6g}."
                )
        M, size = contribution.scatter(_affordable_features)
        _check_semidefinite(M, sums.slack * size)


@contextmanager
def _one_thread_if_small(contribution: Contribution) -> Iterator[None]:
    """Keep torch to one thread for few rows: waking others would take longer.

    The number of threads is the process's: not for several callers at once.
    """
    if contribution.num_rows > _FEW_ROWS:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Sums:
    """The small sums that most rules are about.

    ``diagonal`` (d,) of A, ``means`` (C_k, d) and ``counts`` (C_k,) of the classes
    present, ``between`` (d,), the diagonal of b diag(1/n_c) b'; ``norms`` (d,) are
    sqrt(A_jj) or more, and ``slack`` times them what rounding does: ``rounding`` (d,)
    is how far each A_jj and M_jj may be off.
    """

    def __init__(self, contribution: Contribution, dtype: torch.dtype) -> None:
        n, kind = contribution.n, torch.finfo(dtype)
        self.counts = contribution.class_counts.to(torch.float64)
        self.diagonal, b_transposed = contribution.diagonal, contribution.class_sums
        self.means = b_transposed / self.counts[:, None]
        self.between = (self.means * b_transposed).sum(dim=0)
        # What is smaller than the smallest normal number is rounded by more than u.
        self.norms = self.diagonal.clamp(min=0).sqrt() + math.sqrt(n) * kind.tiny
        # u = eps / 2: (2 + 4 sqrt(C_k)) u <= 3 sqrt(C_k) eps, and a third more for the
        # products of two errors.
        self.slack = 4 * math.sqrt(max(len(self.counts), 1)) * kind.eps
        # n + d roundings in each of A, b and the QR, whose constants are small: 16.
        self.slack += 16 * (n + len(self.diagonal)) * _EPS
        self.rounding = self.slack * self.norms**2


def _check_scatter(sums: _Sums, n: int) -> None:
    """Check the diagonal of M: no negative scatter, none where each has its class."""
    within, rounding = sums.diagonal - sums.between, sums.rounding
    if not bool((within >= -rounding).all()):  # so that NaN fails, too
        j = int((within + rounding).argmin())
        raise InconsistentStatistics(
            f"A and b must be of the same n_c samples, got A = {sums.diagonal[j]:.6g} "
            f"for feature {j} where b and the class counts need "
            f"{sums.between[j]:.6g} or more."
        )
    if n == len(sums.counts) and not float(within.sum()) <= float(rounding.sum()):
        raise InconsistentStatistics(
            "Classes of one sample each (or none) must have no scatter, got "
            f"{within.sum():.6g}."
        )


def _check_trace(sums: _Sums, n: int, norm: float) -> None:
    trace = float(sums.diagonal.sum())
    if not trace <= n * norm**2 + float(sums.rounding.sum()):
        raise InconsistentStatistics(
            f"trace(A) must be <= n B^2 = {n * norm**2:.6g} for features of norm "
            f"B = {norm:g}, got {trace:.6g}."
        )


def _check_range(sums: _Sums, n: int, low: Tensor, high: Tensor) -> None:
    """Check low <= b_c / n_c <= high, and A_jj against sums of (z-low)(high-z)."""
    if not len(sums.counts):
        return
    # Not aminmax, which is several times slower along the first dimension.
    least, most = sums.means.amin(dim=0), sums.means.amax(dim=0)
    rounding = sums.slack * sums.norms / float(sums.counts.min().sqrt())
    inside = (least >= low - rounding) & (most <= high + rounding)
    if not bool(inside.all()):
        j = int((~inside).nonzero()[0])
        raise InconsistentStatistics(
            f"Features must lie in [{low[j]:.4g}, {high[j]:.4g}], got class means of "
            f"{least[j]:.6g} to {most[j]:.6g} for feature {j}. Does the client use "
            "another backbone?"
        )
    # (z - low)(high - z) >= 0, summed: A_jj <= (low + high) sum_c b_jc - n low high.
    bound = (low + high) * (sums.counts @ sums.means) - n * low * high
    in_sums = sums.slack * sums.norms * float(sums.counts.sqrt().sum())
    bound += sums.rounding + (low + high).abs() * in_sums
    if not bool((sums.diagonal <= bound).all()):
        j = int((sums.diagonal - bound).argmax())
        raise InconsistentStatistics(
            f"A must be <= {bound[j]:.6g} for feature {j} in [{low[j]:.4g}, "
            f"{high[j]:.4g}] with these sums, got {sums.diagonal[j]:.6g}."
        )


def _affordable_features(d: int, num_present: int) -> Tensor | slice:
    """Return which features (m,) to check together."""
    m = d
    # Of m features: 2 m^2 C_k for b diag(1/n_c) b', m^3 / 3 for Cholesky.
    while m * m * (2 * num_present + m / 3) > _AFFORDABLE:
        m = int(0.9 * m)  # within 10 % of the most that is affordable
    if m == d:
        return slice(None)
    generator = torch.Generator()
    generator.seed()  # from the operating system: a client can't foresee the choice
    return torch.randperm(d, generator=generator)[:m]


def _check_semidefinite(M: Tensor, slack: float) -> None:
    """Raise unless M + slack I is positive definite, M overwritten."""
    # Cholesky fails on a zero matrix; one that is zero needs no slack to pass. Its own
    # rounding, in practice a few eps times the trace, is in the 16.
    scale = float(M.diagonal().abs().sum())
    M.diagonal().add_(slack + 16 * _EPS * scale + torch.finfo(M.dtype).tiny)
    _, failed = torch.linalg.cholesky_ex(M)
    if int(failed):
        raise InconsistentStatistics(
            "A - b diag(1/n_c) b' must be positive semidefinite, got a direction in "
            "which the class sums b need more than A has. Are A, b and the counts of "
            "the same samples?"
        )
