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
            column = low.new_full((1,), feature_map.intercept_value)
            low, high = torch.cat([low, column]), torch.cat([high, column])
        return cls(low, high, norm, max_samples)
