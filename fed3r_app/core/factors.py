"""Thin factors of a client's statistics: A = R'R and b = R'S with few rows.

The factor is canonical: R is a function of A alone and S of A and b. Anything else
could carry more than the statistics do. A plain Householder QR, for one, leaves raw
feature rows inside R when a leading column is zero or dependent on others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import scipy.linalg
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fed3r_app.core.statistics import (
    ChooseFeatures,
    RidgeStatistics,
    Total,
    check_samples,
    mirror_upper,
)


@dataclass(frozen=True, eq=False)
class StatisticsFactor:
    """A factor (R, S) of the statistics of n samples, of rank r <= min(n, d).

    Parameters
    ----------
    R : Tensor of shape (r, d), float64
        A = R'R. Upper triangular with a positive diagonal once the columns
        ``pivots`` are moved to the front.
    S : Tensor of shape (r, C_k), float64
        b[:, classes] = R'S; the other columns of b are zero.
    pivots : Tensor of shape (r,), int64
        Column of the leading entry of each row of R.
    classes, counts : Tensor of shape (C_k,), int64
        The classes present, ascending, and their numbers of samples.
    num_classes : int
        C, present or not.
    """

    R: Tensor
    S: Tensor
    pivots: Tensor
    classes: Tensor
    counts: Tensor
    num_classes: int

    @property
    def d(self) -> int:
        """Number of features."""
        return self.R.shape[1]

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @property
    def class_counts(self) -> Tensor:
        """Samples of the classes present (C_k,)."""
        return self.counts

    @property
    def diagonal(self) -> Tensor:
        """Diagonal of A = R'R, (d,)."""
        return (self.R * self.R).sum(dim=0)

    @property
    def num_rows(self) -> int:
        """Rows of R."""
        return len(self.R)

    @cached_property
    def class_sums(self) -> Tensor:
        """The sums of the classes present, S'R = b[:, classes]', (C_k, d).

        Cached: they are checked first, and then added to the total.
        """
        return self.S.T @ self.R

    def statistics(self) -> RidgeStatistics:
        """Return the statistics in full: A = R'R, b = R'S."""
        stats = RidgeStatistics.zeros(self.d, self.num_classes, self.R.device)
        mirror_upper(stats.A.addmm_(self.R.T, self.R))
        stats.b[:, self.classes] = self.class_sums.T
        stats.counts[self.classes] = self.counts
        return stats

    def add_to(self, total: Total) -> None:
        """Add this factor's rows to a total."""
        total.add_rows(self.R, self.classes, self.class_sums, self.counts)

    def relabelled(self, moved: Mapping[int, int], num_classes: int) -> RidgeStatistics:
        """Return A, b and counts with class c as class moved[c]."""
        return self.statistics().relabelled(moved, num_classes)

    def least_entry(self) -> float | None:
        """Return None: the rows are what travelled, and A = R'R follows from them."""
        return None

    def quadratic_forms(self, V: Tensor) -> Tensor:
        """Return v'A v = ||R v||^2 (k,) for each column v of V (d, k)."""
        return (self.R @ V).square().sum(dim=0)

    def scatter(self, choose: ChooseFeatures) -> tuple[Tensor, float]:
        """Return I - XX' or I - X'X with X = S diag(n_c)^-1/2, and 1.

        The scatter is R'(I - XX')R: it is >= 0 if X has norm <= 1.
        """
        X = self.S / self.counts.to(torch.float64).sqrt()
        gram = X @ X.T if X.shape[0] < X.shape[1] else X.T @ X
        return torch.eye(len(gram), dtype=gram.dtype) - gram, 1.0


class FactorBuilder:
    """Builds the factor of a client of any size, chunk by chunk, in bounded memory.

    At most d rows of a running (R, S) and as many waiting samples are held. When
    there are more, the stack [R; Z] = Q R' is reduced to R', with S' = Q'[S; Y].
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._R: Tensor | None = None
        self._S = torch.zeros(0, num_classes, dtype=torch.float64)
        self._features: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._counts = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, Z: Tensor, y: Tensor) -> None:
        """Add samples with features Z (m, d) and labels y (m,)."""
        check_samples(Z, y, self._num_classes)
        if self._R is None:
            self._R = torch.zeros(0, Z.shape[1], dtype=torch.float64)
        if Z.shape[1] != self._R.shape[1]:
            raise ValueError(
                f"All chunks must have d = {self._R.shape[1]} features, got "
                f"{Z.shape[1]}."
            )
        d = Z.shape[1]
        for start in range(0, len(Z), max(d, 1)):
            # Copies: the caller may reuse its buffers before these are reduced.
            chunk, labels = Z[start : start + d], y[start : start + d]
            self._features.append(chunk.to("cpu", torch.float64, copy=True))
            self._labels.append(labels.to("cpu", copy=True))
            if sum(len(waiting) for waiting in self._labels) > d:
                self._reduce()
        self._counts += torch.bincount(y.cpu(), minlength=self._num_classes)

    def build(self) -> StatisticsFactor:
        """Return the canonical factor of everything added."""
        if self._R is None:
            raise ValueError("A factor needs to know d: add at least an empty chunk.")
        stack, labels = self._stack()
        Q, R, pivots = _pivoted_qr(stack, n=max(len(stack), int(self._counts.sum())))
        classes = self._counts.nonzero().flatten()
        S, counts = self._project(Q, labels)[:, classes], self._counts[classes]
        return StatisticsFactor(R, S, pivots, classes, counts, self._num_classes)

    def _stack(self) -> tuple[Tensor, Tensor]:
        """Return [R; Z] and the labels of the rows of Z."""
        assert self._R is not None
        labels = [torch.zeros(0, dtype=torch.int64), *self._labels]
        return torch.cat([self._R, *self._features]), torch.cat(labels)

    def _project(self, Q: Tensor, labels: Tensor) -> Tensor:
        """Return Q'[S; Y] for the rows of the stack, Y by indexed addition."""
        known = len(self._S)
        S = Q[:known].T @ self._S
        return S + S.new_zeros(S.shape[::-1]).index_add_(0, labels, Q[known:]).T

    def _reduce(self) -> None:
        stack, labels = self._stack()
        Q, R = torch.linalg.qr(stack)
        self._R, self._S = R, self._project(Q, labels)
        self._features, self._labels = [], []


def _pivoted_qr(M: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q (m, r), R (r, d) and the pivots (r,) of a rank-revealing M = QR.

    Column-pivoted, the diagonal positive, rows below rounding dropped: so R depends
    on M'M alone, whatever the order or number of the rows of M.
    """
    d = M.shape[1]
    if not len(M) or not d:
        empty = torch.zeros(0, dtype=torch.int64)
        return M.new_zeros(len(M), 0), M.new_zeros(0, d), empty
    # Columns of equal norm would be chosen between by their rounding errors. Known,
    # incommensurable scales make the choice the same on every machine.
    scale = torch.exp(-torch.arange(d, dtype=torch.float64) / d)
    # Pivoting is bound by memory, not by arithmetic. SciPy's threads would win little
    # and then, waiting busily, keep torch's from the processors for a while.
    with _thread_pools().limit(limits=1, user_api="blas"):
        q, r, order = scipy.linalg.qr(
            (M * scale).numpy(),
            mode="economic",
            pivoting=True,
            overwrite_a=True,
            check_finite=False,  # samples are checked when they are added
        )
    Q, R_ordered = torch.from_numpy(q), torch.from_numpy(r)
    diagonal = R_ordered.diagonal()
    # Pivots below the usual bound on the rounding of a QR, max(n, d) eps ||M||, are 0.
    noise = max(n, d) * torch.finfo(torch.float64).eps * diagonal[0].abs()
    rank = int((diagonal.abs() > noise).sum())
    sign = diagonal[:rank].sign()
    permutation = torch.from_numpy(order).to(torch.int64)
    R = take_columns(R_ordered[:rank] * sign[:, None], permutation.argsort())
    return Q[:, :rank] * sign, R / scale, permutation[:rank]


def take_columns(M: Tensor, columns: Tensor) -> Tensor:
    """Return M[:, columns]: NumPy is several times as fast at that as torch."""
    return torch.from_numpy(np.take(M.numpy(), columns.numpy(), axis=1))


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the libraries with threads in this process, found once."""
    return ThreadpoolController()
