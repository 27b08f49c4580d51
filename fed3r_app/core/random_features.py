"""Random Fourier features of the RBF kernel, the same everywhere for a seed."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Features drawn from one stream; a block depends on the seed and its number alone.
_BLOCK = 256


class RandomFeatures:
    """The map phi(z) = sqrt(2/D) cos(z'omega + beta).

    Inner products of phi approximate the kernel exp(-||z - z'||^2 / (2 sigma^2)).
    Only the seed travels: every machine draws the same omega and beta from it.

    Parameters
    ----------
    d, D : int
        Number of features before and after.
    sigma : float
        Width of the kernel: omega ~ N(0, 1/sigma^2), beta ~ U[0, 2 pi).
    seed : int
        Seed of the draw.
    """

    def __init__(self, d: int, D: int, sigma: float, seed: int) -> None:
        if d < 1 or D < 1:
            raise ValueError(f"rf-dim must be >= 1, got {D} (for d = {d}).")
        if not (sigma > 0 and math.isfinite(sigma)):
            raise ValueError(f"rf-sigma must be > 0 and finite, got {sigma!r}.")
        blocks = [_draw_block(d, seed, block) for block in range(-(-D // _BLOCK))]
        self.omega = torch.cat([omega for omega, _ in blocks], dim=1)[:, :D] / sigma
        self.beta = torch.cat([beta for _, beta in blocks])[:D]

    @property
    def D(self) -> int:
        """Number of features after the map."""
        return len(self.beta)

    def __call__(self, Z: Tensor) -> Tensor:
        """Return phi(Z) of shape (n, D), float64, on the device of Z."""
        omega, beta = self.omega.to(Z.device), self.beta.to(Z.device)
        angles = torch.addmm(beta, Z.to(torch.float64), omega)
        return angles.cos_().mul_(math.sqrt(2 / self.D))


def _draw_block(d: int, seed: int, block: int) -> tuple[Tensor, Tensor]:
    """Return standard normal (d, _BLOCK) and uniform [0, 2 pi) (_BLOCK,) draws.

    NumPy promises the bits of Philox for all time, not those of its normals: so
    these are made here from the bits, by Box and Muller.
    """
    bits = np.random.Philox(key=(seed % 2**64) + (block << 64))
    half = (d * _BLOCK + 1) // 2
    raw = bits.random_raw(2 * half + _BLOCK)
    # The 53 high bits, moved off zero: log is finite.
    uniform = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = 2.0 * np.pi * uniform[half : 2 * half]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    omega = normal[: d * _BLOCK].reshape(d, _BLOCK)
    return torch.from_numpy(omega), torch.from_numpy(2.0 * np.pi * uniform[-_BLOCK:])
