"""From backbone features to those whose statistics are taken, and bounds on them.

``Limits`` is what is known of every sample before any arrives: the range and the norm
of its features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fed3r_app.core.random_features import RandomFeatures

# Means over an image's positions, taken in float32, may pass the range by rounding: of
# 1,000 positions, more than networks have in the end, by 1,000 x 6e-8 at most.
_SLACK = 1e-4


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
    norm : float
        Bring every sample's features to this norm B, as differential privacy needs it;
        0 leaves them as they are. With an intercept, half of B^2 is the intercept's.
    """

    d: int
    rf_dim: int = 0
    rf_sigma: float = 1.0
    rf_seed: int = 0
    intercept: bool = False
    norm: float = 0.0

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
        if self.norm:
            # Features of norm 0, a black image's, stay 0.
            Z = Z / Z.norm(dim=1, keepdim=True).clamp(min=torch.finfo(Z.dtype).tiny)
        if self.intercept:
            Z = torch.cat([Z, Z.new_ones(len(Z), 1)], dim=1)
        return Z * self.scale if self.norm else Z

    @property
    def scale(self) -> float:
        """The intercept; with a norm B, also the norm of the other features."""
        if not self.norm:
            return 1.0
        return self.norm / math.sqrt(2) if self.intercept else self.norm

    def bounds(
        self, backbone_range: tuple[float, float] | None
    ) -> tuple[float, float] | None:
        """Return the least and largest mapped feature, where known; no intercept."""
        nonnegative = backbone_range is not None and backbone_range[0] >= 0
        if self.norm:
            return 0.0 if nonnegative and not self.rf_dim else -self.scale, self.scale
        if self.rf_dim:
            bound = math.sqrt(2 / self.rf_dim)
            return -bound, bound
        return backbone_range


# Many simulated clients share a process, and drawing takes longer than mapping few.
@lru_cache(maxsize=1)
def _draw_once(d: int, D: int, sigma: float, seed: int) -> RandomFeatures:
    return RandomFeatures(d, D, sigma, seed)


@dataclass(frozen=True, eq=False)
class Limits:
    """Bounds on each sample's features, and on how many samples one client may have.

    Parameters
    ----------
    low, high : Tensor of shape (d,), float64, or None
        Smallest and largest value of each feature; both or neither.
    norm : float
        Largest norm of a sample's features.
    max_samples : int
        Most samples of one client; 0 for any number.
    """

    low: Tensor | None = None
    high: Tensor | None = None
    norm: float = math.inf
    max_samples: int = 0

    @classmethod
    def of(
        cls,
        feature_map: FeatureMap,
        backbone_range: tuple[float, float] | None = None,
        max_samples: int = 0,
    ) -> Limits:
        """Return what holds for the features that a map makes of a backbone's."""
        norm = feature_map.norm or math.inf
        between = feature_map.bounds(backbone_range)
        if between is None:
            return cls(norm=norm, max_samples=max_samples)
        width = feature_map.dim - int(feature_map.intercept)
        low, high = (
            torch.full((width,), value, dtype=torch.float64) for value in between
        )
        slack = _SLACK * (high - low)
        low, high = low - slack * (low != 0), high + slack
        if feature_map.intercept:
            column = low.new_full((1,), feature_map.scale)
            low, high = torch.cat([low, column]), torch.cat([high, column])
        return cls(low, high, norm, max_samples)
