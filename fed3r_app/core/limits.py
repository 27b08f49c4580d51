"""What is known of every sample before any arrives: the range of its features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fed3r_app.core.feature_map import FeatureMap

# Means over an image's positions, taken in float32, may pass the range by rounding.
_SLACK = 1e-4


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
        between = _between(feature_map, backbone_range)
        if between is None:
            return cls(max_samples=max_samples)
        width = feature_map.dim - int(feature_map.intercept)
        low, high = (
            torch.full((width,), value, dtype=torch.float64) for value in between
        )
        slack = _SLACK * (high - low)
        low, high = low - slack * (low != 0), high + slack
        if feature_map.intercept:
            one = low.new_ones(1)
            low, high = torch.cat([low, one]), torch.cat([high, one])
        return cls(low, high, max_samples=max_samples)


def _between(
    feature_map: FeatureMap, backbone_range: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Return the range of the mapped features, without the intercept."""
    if feature_map.rf_dim:
        bound = math.sqrt(2 / feature_map.rf_dim)
        return -bound, bound
    return backbone_range
