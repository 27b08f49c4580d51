"""First moments of features, and the kernel width that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """n, sum z and sum ||z||^2: d + 2 numbers that add up over clients."""

    n: int
    total: Tensor
    squared_norms: float

    @classmethod
    def of(cls, Z: Tensor) -> FeatureMoments:
        """Return the moments of features Z (n, d)."""
        Z = Z.to(torch.float64)
        return cls(len(Z), Z.sum(dim=0), float(Z.square().sum()))

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        """Return the moments of the union."""
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"Moments to add must agree on d; got {len(self.total)} and "
                f"{len(other.total)}. Do all clients use the same backbone?"
            )
        return FeatureMoments(
            self.n + other.n,
            self.total + other.total,
            self.squared_norms + other.squared_norms,
        )

    def sigma(self) -> float:
        """Return a kernel width: 3 times the root mean square distance.

        The mean of ||z - z'||^2 over pairs is 2 (E||z||^2 - ||E z||^2).
        """
        if self.n == 0:
            raise ValueError("rf-sigma = 'auto' needs features, got none.")
        mean_square = self.squared_norms / self.n
        spread = mean_square - float((self.total / self.n).norm() ** 2)
        # The difference of two sums over n (d) terms is only known to rounding.
        rounding = (self.n + len(self.total)) * torch.finfo(torch.float64).eps
        if not spread > rounding * mean_square:
            raise ValueError(
                "rf-sigma = 'auto' needs features that differ, got "
                f"{self.n} equal ones. Set rf-sigma to a number."
            )
        return 3 * math.sqrt(2 * spread)
