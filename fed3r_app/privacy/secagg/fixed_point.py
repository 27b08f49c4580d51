"""Statistics as integers: exact in float64, exact modulo 2^64.

Features rounded to multiples of 2^-g make every entry of A a whole number of 2^-2g
and every entry of b one of 2^-g. As long as n zmax^2 2^2g < 2^53 no sum of them, in
whatever order, is ever rounded in float64: adding integers modulo 2^64 and adding the
plain statistics give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.core.statistics import (
    mirror_upper,
    pack_upper,
    packed_size,
    unpack_upper,
)

_MOST_BITS = 20  # features are float32, of 24 bits: finer steps would add little
_EXACT = 2**53  # float64 holds all whole numbers below
_ROUNDING = 1e-6  # a few eps of float32, 1.2e-7
Integers = NDArray[np.int64]
Vector = NDArray[np.uint64]


@dataclass(frozen=True)
class FixedPointEncoding:
    """Multiples of 2^-bits up to a largest feature.

    Parameters
    ----------
    feature_map : FeatureMap
        From backbone features to those of the statistics. Of random features the
        cosines are rounded, and the server multiplies by sqrt(2/D).
    max_feature : float
        Largest absolute value zmax; a feature beyond it is refused.
    max_samples : int
        Largest number of samples of all clients together, n_max.
    """

    feature_map: FeatureMap
    max_feature: float
    max_samples: int

    def __post_init__(self) -> None:
        if self._largest_sum(0) >= _EXACT:
            raise ValueError(
                "secagg-max-samples times secagg-max-feature squared must be < 2^53, "
                f"got {self.max_samples} and {self.max_feature:g}."
            )

    @classmethod
    def choose(
        cls,
        feature_map: FeatureMap,
        backbone_range: tuple[float, float] | None,
        max_feature: float | None,
        max_samples: int,
    ) -> FixedPointEncoding:
        """Return the encoding of a run, from what is known of backbone features.

        ``max_feature`` is their largest absolute value; None takes it from their range.
        """
        if feature_map.norm:
            largest = feature_map.norm
        elif feature_map.rf_dim:  # cosines, whatever the backbone
            largest = 1.0
        elif max_feature is not None:
            largest = max_feature
        elif backbone_range is not None:
            largest = max(map(abs, backbone_range))
        else:
            raise ValueError(
                "secagg-max-feature must be a number, got 'auto': the range of this "
                "backbone's features is not known."
            )
        if feature_map.intercept:
            largest = max(largest, feature_map.scale)
        return cls(feature_map, largest, max_samples)

    @property
    def bits(self) -> int:
        """The largest g up to 20 with n_max zmax^2 2^2g < 2^53."""
        return max(g for g in range(_MOST_BITS + 1) if self._largest_sum(g) < _EXACT)

    @property
    def largest_unit(self) -> int:
        """The largest feature in units of 2^-bits."""
        return math.floor(self.max_feature * 2.0**self.bits)

    def integers(self, Z: Tensor) -> Tensor:
        """Return features (n, dim) in units of 2^-bits, whole numbers in float64.

        Features of a fixed norm are rounded towards zero, which never passes it.
        """
        Z = Z.to(torch.float64) / self.scales()
        largest = float(Z.abs().max()) if Z.numel() else 0.0
        # A cosine or a norm may pass its bound by a rounding error, never by more.
        if not largest <= self.max_feature * (1 + _ROUNDING):  # also refuses NaN
            # The message goes to the server: it must not show what the feature is.
            raise ValueError(
                f"Features must lie within secagg-max-feature = {self.max_feature:g}, "
                "got one beyond it, or NaN."
            )
        units = Z * 2.0**self.bits
        units = units.trunc() if self.feature_map.norm else units.round()
        return units.clamp(-self.largest_unit, self.largest_unit)

    def round(self, Z: Tensor) -> Tensor:
        """Return the rounded features: with them a plain run has the same result."""
        return self.integers(Z) * 2.0**-self.bits

    def scales(self) -> Tensor:
        """Return what the server multiplies each feature with, shape (dim,)."""
        scales = torch.ones(self.feature_map.dim, dtype=torch.float64)
        if D := self._num_cosines:
            scales[:D] = (2 / D) ** 0.5
        return scales

    def scaled(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics of the features from those of the cosines."""
        if not self._num_cosines:
            return stats
        A, scales = stats.A.clone(), self.scales().to(stats.A.device)
        for block, factor in self._blocks(A):
            block *= factor
        return RidgeStatistics(A, stats.b * scales[:, None], stats.counts)

    def unscaled(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics of the cosines from those of the features.

        The inverse of ``scaled``, exact up to a quarter of ``max_samples``: there the
        two roundings stay below half a unit.
        """
        if not self._num_cosines:
            return stats
        A, scales = stats.A.clone(), self.scales().to(stats.A.device)
        for block, factor in self._blocks(A):
            block /= factor
        b, unit = stats.b / scales[:, None], 2.0**-self.bits
        # Whole numbers of units.
        A, b = (A / unit**2).round_() * unit**2, (b / unit).round_() * unit
        return RidgeStatistics(A, b, stats.counts)

    def _blocks(self, A: Tensor) -> list[tuple[Tensor, float]]:
        """Return the blocks of A and their scales; the column of ones keeps its own."""
        D = self._num_cosines
        scale = (2 / D) ** 0.5
        return [(A[:D, :D], 2 / D), (A[:D, D:], scale), (A[D:, :D], scale)]

    @property
    def _num_cosines(self) -> int:
        """How many features travel as cosines; those of a fixed norm as they are."""
        return 0 if self.feature_map.norm else self.feature_map.rf_dim

    def _largest_sum(self, bits: int) -> Fraction:
        return self.max_samples * Fraction(self.max_feature) ** 2 * (1 << 2 * bits)


@dataclass(frozen=True, eq=False)
class IntegerStatistics:
    """A, b and counts as integers, in units of 4^-bits, 2^-bits and 1.

    Parameters
    ----------
    A : array of shape (d (d + 1) / 2,), int64
        The upper triangle, row by row.
    b : array of shape (d, C), int64
        Of all C classes: which of them a client has stays secret.
    counts : array of shape (C,), int64
        Samples of each class.
    """

    A: Integers
    b: Integers
    counts: Integers

    @classmethod
    def of(
        cls,
        chunks: Iterable[tuple[Tensor, Tensor]],
        num_classes: int,
        encoding: FixedPointEncoding,
    ) -> IntegerStatistics:
        """Return the statistics of chunks of mapped features (m, dim), labels (m,)."""
        total = RidgeStatistics.zeros(encoding.feature_map.dim, num_classes)
        for Z, y in chunks:
            total = total + RidgeStatistics.of(encoding.integers(Z), y, num_classes)
        if total.n > encoding.max_samples:
            # The message goes to the server: it must not show how many there are.
            raise ValueError(
                "secagg-max-samples must be at least the number of this client's "
                f"samples, got {encoding.max_samples}."
            )
        return cls(
            pack_upper(total.A).numpy().astype(np.int64),
            total.b.numpy().astype(np.int64),
            total.counts.numpy(),
        )

    def vector(self) -> Vector:
        """Return A, b, counts and n as one vector modulo 2^64."""
        n = self.counts.sum(keepdims=True)
        parts = (self.A, self.b.ravel(), self.counts, n)
        return np.concatenate(parts).view(np.uint64)

    @classmethod
    def from_vector(cls, vector: Vector, d: int, num_classes: int) -> IntegerStatistics:
        """Return the statistics in a vector; raise ValueError if its n is another."""
        if vector.shape != (vector_length(d, num_classes),):
            raise ValueError(
                f"The vector must have {vector_length(d, num_classes)} values, got "
                f"shape {vector.shape}."
            )
        cuts = np.cumsum([packed_size(d, d), d * num_classes, num_classes])
        A, b, counts, n = np.split(vector.view(np.int64), cuts)
        total = sum(counts.tolist())  # of Python's integers: int64 would wrap around
        if total != int(n[0]):
            raise ValueError(
                f"The counts must add up to n = {int(n[0])}, got {total}: the sum was "
                "not unmasked."
            )
        return cls(A, b.reshape(d, num_classes), counts)

    def check_within(self, encoding: FixedPointEncoding) -> None:
        """Raise ValueError unless these can be sums over encoded features."""
        n, largest = sum(self.counts.tolist()), encoding.largest_unit
        for name, values, least, most in (
            ("counts", self.counts, 0, n),
            ("b", self.b, -n * largest, n * largest),
            ("A", self.A, -n * largest**2, n * largest**2),
        ):
            if not least <= int(values.min()) <= int(values.max()) <= most:
                raise ValueError(
                    f"{name} must be a sum over features within "
                    f"{encoding.max_feature:g}, got one that can't be."
                )

    def statistics(self, encoding: FixedPointEncoding) -> RidgeStatistics:
        """Return the same as float64, exactly; see ``FixedPointEncoding.scaled``."""
        d, unit = len(self.b), 2.0**-encoding.bits
        return RidgeStatistics(
            A=mirror_upper(unpack_upper(self.A * unit**2, d, d)),
            b=torch.from_numpy(self.b * unit),
            counts=torch.from_numpy(self.counts.copy()),
        )


def vector_length(d: int, num_classes: int) -> int:
    """Return the number of integers that a client masks."""
    return packed_size(d, d) + d * num_classes + num_classes + 1
