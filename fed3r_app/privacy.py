"""How much noise a privacy budget asks for, and where that noise comes from."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.core.gaussian_release import release_sensitivity, sensitivity

# Every sample's features are brought to this norm, B.
NORM = 1.0
NEIGHBOURS = "add or remove one sample"
_CHUNK = 2**20


@dataclass(frozen=True)
class PrivacyBudget:
    """(epsilon, delta)-differential privacy of one Gaussian release.

    Parameters
    ----------
    epsilon, delta : float
        ``dp-epsilon`` and ``dp-delta``.
    """

    epsilon: float
    delta: float

    def noise_multiplier(self) -> float:
        """Return the least deviation of the noise for a sensitivity of 1."""
        # Seconds to import, and only where noise is asked for.
        import dp_accounting

        return float(dp_accounting.get_sigma_gaussian(self.epsilon, self.delta))

    def central_sigma(self, d: int, num_classes: int) -> float:
        """Return the deviation of the noise that a server adds to the sums."""
        distance = release_sensitivity(NORM, d, num_classes)
        return self.noise_multiplier() * distance

    def shared_sigma(self) -> float:
        """Return the deviation that the clients' noise must have together."""
        # Integers are exact: nothing is rounded after the features are.
        return self.noise_multiplier() * sensitivity(NORM)


def check_feature_map(epsilon: float, feature_map: FeatureMap) -> None:
    """Raise unless a client's features get the norm that its privacy relies on."""
    wanted = NORM if epsilon else 0.0
    if feature_map.norm != wanted:
        raise ValueError(
            f"Features must be brought to norm {wanted:g} with dp-epsilon = "
            f"{epsilon:g}, got {feature_map.norm:g} from the server."
        )


def secure_normals(size: int) -> Tensor:
    """Return standard normal numbers (size,), float64, that nobody can foresee.

    From the operating system's cryptographic generator, by Box and Muller. Whoever
    could guess the seed of another generator could take the noise off again.
    """
    chunks = range(0, size, _CHUNK)
    parts = [_draw_chunk(min(_CHUNK, size - start)) for start in chunks]
    return torch.from_numpy(np.concatenate([np.zeros(0), *parts]))


def _draw_chunk(size: int) -> NDArray[np.float64]:
    half = (size + 1) // 2
    raw = np.frombuffer(os.urandom(16 * half), dtype=np.uint64)
    # The 53 high bits, moved off zero: log is finite.
    uniform = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = 2.0 * math.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
