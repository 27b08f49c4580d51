"""Ridge statistics as values: they add up to those of the union of the data.

Also upper triangles as they are stored and sent, row by row, without the rest; and
what every form of a contribution offers, so that no caller asks which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.words import plural

_MIRROR_BLOCK = 512  # rows: 2 MB of a block of A, which a cache holds
Samples = Tensor | NDArray[Any]
# Which of d features to look at where C_k classes are present.
ChooseFeatures = Callable[[int, int], Tensor | slice]


class Total(Protocol):
    """Where contributions are added up."""

    def add_matrices(self, A: Tensor, b: Tensor, counts: Tensor) -> None:
        """Add A (d, d), b (d, C) and counts (C,)."""

    def add_rows(
        self, R: Tensor, classes: Tensor, class_sums: Tensor, counts: Tensor
    ) -> None:
        """Add R'R (d, d), and sums (C_k, d) and counts (C_k,) of some classes."""


class Contribution(Protocol):
    """The statistics of one client, in whatever form they travelled.

    ``classes`` (C_k,) are those with samples, ``class_counts`` (C_k,) and
    ``class_sums`` (C_k, d) their numbers and sums, ``diagonal`` (d,) that of A, and
    ``num_rows`` how many rows it takes to hold A.
    """

    @property
    def d(self) -> int: ...  # noqa: D102
    @property
    def num_classes(self) -> int: ...  # noqa: D102
    @property
    def n(self) -> int: ...  # noqa: D102
    @property
    def classes(self) -> Tensor: ...  # noqa: D102
    @property
    def class_counts(self) -> Tensor: ...  # noqa: D102
    @property
    def class_sums(self) -> Tensor: ...  # noqa: D102
    @property
    def diagonal(self) -> Tensor: ...  # noqa: D102
    @property
    def num_rows(self) -> int: ...  # noqa: D102

    def add_to(self, total: Total) -> None:
        """Add this contribution to a total."""

    def statistics(self) -> RidgeStatistics:
        """Return A, b and counts."""

    def relabelled(self, moved: Mapping[int, int], num_classes: int) -> RidgeStatistics:
        """Return A, b and counts with class c as class moved[c]."""

    def least_entry(self) -> float | None:
        """Return the least entry of A, where it is not positive by construction."""

    def quadratic_forms(self, V: Tensor) -> Tensor:
        """Return v'A v (k,) for each column v of V (d, k)."""

    def scatter(self, choose: ChooseFeatures) -> tuple[Tensor, float]:
        """Return a matrix that is >= 0 iff the scatter is, and the size of its terms.

        The scatter within the classes is A - b diag(1/n_c) b'.
        """


def pack_upper(M: Tensor) -> Tensor:
    """Return the entries of an upper triangle or trapezium (r, d), row by row.

    Slices, not indices: those would take four times the memory of the matrix.
    """
    rows = M.numpy()
    parts = [row[start:] for start, row in enumerate(rows)]
    return torch.from_numpy(np.concatenate([rows[:0].ravel(), *parts]))


def unpack_upper(entries: NDArray[Any], rows: int, columns: int) -> Tensor:
    """Return the matrix (rows, columns), float64, that ``pack_upper`` took apart."""
    M = torch.zeros(rows, columns, dtype=torch.float64)
    begin = 0
    for start, row in enumerate(M.numpy()):
        end = begin + columns - start
        row[start:] = entries[begin:end]
        begin = end
    return M


def packed_size(rows: int, columns: int) -> int:
    """Return the number of entries of an upper trapezium."""
    return rows * columns - rows * (rows - 1) // 2


@dataclass(frozen=True, eq=False)
class RidgeStatistics:
    """The statistics from which the ridge classifier is solved.

    They don't depend on how samples are split: adding those of two data sets gives
    those of their union, subtracting takes one away again.

    Parameters
    ----------
    A : Tensor of shape (d, d), float64
        Z'Z.
    b : Tensor of shape (d, C), float64
        Z'Y; column c is the sum of the features of class c.
    counts : Tensor of shape (C,), int64
        Samples of each class.
    """

    A: Tensor
    b: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        d, num_classes = self.b.shape
        if self.A.shape != (d, d) or self.counts.shape != (num_classes,):
            raise ValueError(
                "A, b and counts must have shapes (d, d), (d, C) and (C,), got "
                f"{tuple(self.A.shape)}, {tuple(self.b.shape)} and "
                f"{tuple(self.counts.shape)}."
            )
        dtypes = (self.A.dtype, self.b.dtype, self.counts.dtype)
        if dtypes != (torch.float64, torch.float64, torch.int64):
            raise TypeError(
                f"A, b and counts must be float64, float64 and int64, got {dtypes}."
            )

    @classmethod
    def zeros(
        cls, d: int, num_classes: int, device: torch.device | str = "cpu"
    ) -> RidgeStatistics:
        """Return the statistics of no data, the neutral element of ``+``."""
        return cls(
            A=torch.zeros(d, d, dtype=torch.float64, device=device),
            b=torch.zeros(d, num_classes, dtype=torch.float64, device=device),
            counts=torch.zeros(num_classes, dtype=torch.int64, device=device),
        )

    @classmethod
    def of(cls, Z: Samples, y: Samples, num_classes: int) -> RidgeStatistics:
        """Return the statistics of features Z (n, d) with labels y (n,)."""
        Z, y = torch.as_tensor(Z), as_labels(y)
        check_samples(Z, y, num_classes)
        Z = Z.to(torch.float64)
        b_transposed = Z.new_zeros(num_classes, Z.shape[1])
        # Row c of b' is the sum of the rows of Z with label c: an indexed addition.
        b_transposed.index_add_(0, y, Z)
        return cls(
            A=mirror_upper(Z.T @ Z),
            b=b_transposed.T.contiguous(),
            counts=torch.bincount(y, minlength=num_classes),
        )

    @property
    def d(self) -> int:
        """Number of features."""
        return self.b.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes C, present or not."""
        return self.b.shape[1]

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @property
    def classes(self) -> Tensor:
        """Classes with samples (C_k,)."""
        return self.counts.nonzero().flatten()

    @property
    def class_counts(self) -> Tensor:
        """Samples of the classes present (C_k,)."""
        return self.counts[self.classes]

    @property
    def class_sums(self) -> Tensor:
        """Sums of the features of the classes present (C_k, d)."""
        return self.b.T[self.classes]

    @property
    def diagonal(self) -> Tensor:
        """Diagonal of A (d,)."""
        return self.A.diagonal()

    @property
    def num_rows(self) -> int:
        """Rows that hold A: d."""
        return self.d

    def __add__(self, other: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics of the union of the two data sets."""
        check_same_space(self.b.shape, other.b.shape)
        return RidgeStatistics(
            self.A + other.A, self.b + other.b, self.counts + other.counts
        )

    def __radd__(self, zero: int) -> RidgeStatistics:
        """Return these statistics: ``sum()`` begins with 0."""
        return self if type(zero) is int and zero == 0 else NotImplemented

    def __sub__(self, other: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics without the samples of ``other``."""
        check_same_space(self.b.shape, other.b.shape)
        counts = self.counts - other.counts
        if bool((counts < 0).any()):
            c = int(counts.argmin())
            raise ValueError(
                "Statistics to subtract must be part of the total; class "
                f"{c} has {plural(int(self.counts[c]), 'sample')}, got "
                f"{int(other.counts[c])} to remove."
            )
        # A class without samples left has sums of zero, not of rounding errors.
        b = (self.b - other.b).masked_fill(counts == 0, 0.0)
        return RidgeStatistics(self.A - other.A, b, counts)

    def add_to(self, total: Total) -> None:
        """Add these statistics to a total."""
        total.add_matrices(self.A, self.b, self.counts)

    def statistics(self) -> RidgeStatistics:
        """Return these statistics: they are in full already."""
        return self

    def least_entry(self) -> float | None:
        """Return the least entry of A; None for no features."""
        return float(self.A.min()) if self.d else None

    def quadratic_forms(self, V: Tensor) -> Tensor:
        """Return v'A v (k,) for each column v of V (d, k)."""
        return (V * (self.A @ V)).sum(dim=0)

    def scatter(self, choose: ChooseFeatures) -> tuple[Tensor, float]:
        """Return A - b diag(1/n_c) b' on the features chosen, and the trace of A."""
        counts = self.class_counts.to(torch.float64)
        chosen = choose(self.d, len(counts))
        A = self.A[chosen][:, chosen]
        means = (self.class_sums / counts[:, None])[:, chosen]
        X = means * counts.sqrt()[:, None]
        return A - X.T @ X, float(A.diagonal().sum())

    def to(self, device: torch.device | str) -> RidgeStatistics:
        """Return the same statistics on ``device``."""
        return RidgeStatistics(
            self.A.to(device), self.b.to(device), self.counts.to(device)
        )

    def relabelled(self, moved: Mapping[int, int], num_classes: int) -> RidgeStatistics:
        """Return the same statistics with class c as class moved[c] of ``num_classes``.

        Every class that has samples must have a place, and no two the same.
        """
        present = self.classes.tolist()
        places = [moved[c] for c in present]
        if len(set(places)) < len(places):
            raise ValueError(f"Classes must keep apart, got places {places[:10]}.")
        b = self.b.new_zeros(self.d, num_classes)
        counts = self.counts.new_zeros(num_classes)
        b[:, places], counts[places] = self.b[:, present], self.counts[present]
        return RidgeStatistics(self.A, b, counts)


def mirror_upper(A: Tensor) -> Tensor:
    """Return A (d, d), overwritten, with its upper triangle mirrored below.

    A product Z'Z is symmetric only to rounding: BLAS may add up (i, j) and (j, i) in
    different orders. Block by block: at d = 10,000 a copy of A takes 800 MB.
    """
    for start in range(0, len(A), _MIRROR_BLOCK):
        stop = start + _MIRROR_BLOCK
        diagonal = A[start:stop, start:stop]
        above = diagonal.triu(1)
        diagonal.triu_().add_(above.T)
        A[stop:, start:stop] = A[start:stop, stop:].T
    return A


def check_same_space(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Raise unless the two (d, C) agree."""
    if tuple(one) != tuple(other):
        raise ValueError(
            f"Statistics to add must agree on (d, C); got {tuple(one)} and "
            f"{tuple(other)}. Do all clients use the same backbone and labels?"
        )


def as_labels(y: Samples) -> Tensor:
    """Return labels of any integer type, a tensor or an array, as int64."""
    y = torch.as_tensor(y)
    is_whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return y.to(torch.int64) if is_whole else y


def check_samples(Z: Tensor, y: Tensor, num_classes: int) -> None:
    """Raise unless Z (n, d) is finite and y (n,) holds labels below num_classes."""
    if Z.ndim != 2 or y.shape != (Z.shape[0],):
        raise ValueError(
            f"Features and labels must have shapes (n, d) and (n,), got "
            f"{tuple(Z.shape)} and {tuple(y.shape)}."
        )
    if y.dtype != torch.int64:
        raise TypeError(f"Labels must be whole numbers, got {y.dtype}.")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise ValueError(
            f"Labels must lie in [0, {num_classes}), got {int(y.min())} to "
            f"{int(y.max())}."
        )
    if not bool(torch.isfinite(Z).all()):
        rows = (~torch.isfinite(Z)).any(dim=1)
        raise ValueError(
            f"Features must be finite, got NaN or infinity in {int(rows.sum())} of "
            f"{len(Z)} rows. Is an image or a weight damaged?"
        )
