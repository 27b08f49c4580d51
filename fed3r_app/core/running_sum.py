"""A running sum of statistics that folds many small contributions quickly."""

from __future__ import annotations

import torch
from torch import Tensor

from fed3r_app.core.statistics import (
    Contribution,
    RidgeStatistics,
    check_same_space,
    mirror_upper,
)

# Rows of A that one product updates: what lies below the diagonal is not computed.
# Narrower blocks save more of it, and make products too thin for full speed.
_BLOCK = 256


class RunningSum:
    """The sum of all contributions added so far.

    A factor of rank r is not turned into a d x d matrix: its rows wait until enough
    have come together, then one product adds them all, sum R_k'R_k = [R_1; R_2; …]'
    [R_1; R_2; …]. Memory stays at A, b and the waiting rows. The
    statistics to start from are copied and fixes d, C and the device.
    """

    def __init__(self, start: RidgeStatistics) -> None:
        self._A = start.A.clone()
        # Kept as C x d: a contribution adds whole, contiguous rows to it.
        self._b_transposed = start.b.T.clone(memory_format=torch.contiguous_format)
        self._counts = start.counts.clone()
        self._waiting: list[Tensor] = []
        self._waiting_rows = 0
        # As much memory as A, and rows enough for a product at full speed.
        self._max_rows = max(start.d, 256)

    @property
    def n(self) -> int:
        """Number of samples aggregated so far."""
        return int(self._counts.sum())

    def add(self, contribution: Contribution) -> None:
        """Add one contribution."""
        check_same_space(
            (self._A.shape[0], len(self._counts)),
            (contribution.d, contribution.num_classes),
        )
        contribution.add_to(self)

    def add_matrices(self, A: Tensor, b: Tensor, counts: Tensor) -> None:
        """Add A (d, d), b (d, C) and counts (C,)."""
        device = self._A.device
        self._A += A.to(device)
        self._b_transposed += b.T.to(device)
        self._counts += counts.to(device)

    def add_rows(
        self, R: Tensor, classes: Tensor, class_sums: Tensor, counts: Tensor
    ) -> None:
        """Add R'R (d, d), and sums (C_k, d) and counts (C_k,) of some classes."""
        device = self._A.device
        R, classes = R.to(device), classes.to(device)
        # Not index_add_, which wakes threads for a client's few rows: 25 times slower.
        sums, counts = class_sums.to(device), counts.to(device)
        self._b_transposed.index_put_((classes,), sums, accumulate=True)
        self._counts.index_put_((classes,), counts, accumulate=True)
        self._waiting.append(R)
        self._waiting_rows += len(R)
        if self._waiting_rows >= self._max_rows:
            self._fold_waiting()

    def value(self) -> RidgeStatistics:
        """Return the sum as a value of its own."""
        self._fold_waiting()
        # Clones, even where a transpose of one row is contiguous as it is.
        return RidgeStatistics(
            A=mirror_upper(self._A.clone()),
            b=self._b_transposed.T.clone(memory_format=torch.contiguous_format),
            counts=self._counts.clone(),
        )

    def _fold_waiting(self) -> None:
        if not self._waiting:
            return
        R = torch.cat(self._waiting)
        # Blocks of rows from the diagonal on: what lies below is mirrored in the end.
        for start in range(0, R.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            self._A[block, start:].addmm_(R[:, block].T, R[:, start:])
        self._waiting, self._waiting_rows = [], 0
