"""What makes the sums differentially private, as the strategies see it."""

from __future__ import annotations

from typing import Protocol

from fed3r_app.core import RidgeStatistics


class Release(Protocol):
    """Makes sums differentially private."""

    def __call__(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics with noise."""

    @property
    def lam(self) -> float:
        """The ridge penalty that goes with the noise."""
