"""From backbone features to the features whose statistics are taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fed3r_app.core.random_features import RandomFeatures


@dataclass(frozen=True)
class FeatureMap:
    """Random features, where wanted, and a column of ones for the intercept.

    A few numbers that travel and are saved in the place of its matrices.

    Parameters
    ----------
    d : int
        Number of backbone features.
    rf_dim : int
        Number D of random features; 0 leaves the backbone features as they are.
    rf_sigma, rf_seed
        Kernel width and seed of the random features.
    intercept : bool
        Append a column of ones.
    """

    d: int
    rf_dim: int = 0
    rf_sigma: float = 1.0
    rf_seed: int = 0
    intercept: bool = False

    @property
    def dim(self) -> int:
        """Number of features after the map."""
        return (self.rf_dim or self.d) + int(self.intercept)

    def __call__(self, Z: Tensor) -> Tensor:
        """Return the mapped features (n, dim), float64, of Z (n, d)."""
        if Z.shape[1] != self.d:
            raise ValueError(
                f"Features must have d = {self.d} columns, got {Z.shape[1]}. Do they "
                "come from another backbone?"
            )
        if self.rf_dim:
            Z = _draw_once(self.d, self.rf_dim, self.rf_sigma, self.rf_seed)(Z)
        else:
            Z = Z.to(torch.float64)
        return torch.cat([Z, Z.new_ones(len(Z), 1)], dim=1) if self.intercept else Z


# Many simulated clients share a process, and drawing takes longer than mapping few.
@lru_cache(maxsize=1)
def _draw_once(d: int, D: int, sigma: float, seed: int) -> RandomFeatures:
    return RandomFeatures(d, D, sigma, seed)
