"""The one noisy release of a run with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from logging import INFO

from flwr.common.logger import log

from fed3r_app.core import RidgeStatistics
from fed3r_app.core.gaussian_release import (
    make_valid,
    private_lambda,
    release,
    sensitivity,
)
from fed3r_app.privacy import NEIGHBOURS, NORM, PrivacyBudget, secure_normals
from fed3r_app.private_settings import CENTRAL, DISTRIBUTED
from fed3r_app.run_errors import RunError


class CentralRelease:
    """Noise that the server adds to the sums, once.

    Parameters
    ----------
    budget : PrivacyBudget
        Epsilon and delta.
    d, num_classes : int
        Shape of the statistics.
    check : callable
        Called before the release; raises if there must be none.
    """

    def __init__(
        self,
        budget: PrivacyBudget,
        d: int,
        num_classes: int,
        check: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._d = d
        self._check = check
        self.sigma = budget.central_sigma(d, num_classes)

    def __call__(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the statistics with noise; call it once."""
        self._check()
        log(
            INFO,
            "Differential privacy: epsilon %g, delta %g, noise of deviation %.4g",
            self._budget.epsilon,
            self._budget.delta,
            self.sigma,
        )
        return release(stats, self.sigma, secure_normals)

    @property
    def lam(self) -> float:
        """The ridge penalty that goes with the noise."""
        return private_lambda(self.sigma, self._d)

    def summary(self) -> dict[str, object]:
        """Return what the run's summary says of its privacy."""
        return _summary(CENTRAL, self._budget, self.sigma)


class DistributedRelease:
    """Noise that the clients have added to the sums of their groups.

    The sum over each group is private by itself: t members, the least that are ever
    unmasked, have noise of deviation sigma together, m survivors of sigma sqrt(m / t).

    Parameters
    ----------
    budget : PrivacyBudget
        Epsilon and delta.
    d : int
        Number of features.
    check : callable
        Called before the release; raises if there must be none.
    """

    def __init__(
        self, budget: PrivacyBudget, d: int, check: Callable[[], None]
    ) -> None:
        self._budget = budget
        self._d = d
        self._check = check
        self._shares = 0.0

    def count_group(self, survivors: int, threshold: int) -> None:
        """Note a group's sum: so many shares of noise, so many of them enough."""
        if survivors < threshold:
            raise RunError(
                f"The noise of a group was calibrated for {threshold} clients, got "
                f"{survivors}."
            )
        self._shares += survivors / threshold

    def __call__(self, stats: RidgeStatistics) -> RidgeStatistics:
        """Return the noisy statistics, made valid again."""
        self._check()
        return make_valid(stats)

    @property
    def sigma(self) -> float:
        """Deviation of the noise in the sum over all groups."""
        return self._budget.shared_sigma() * math.sqrt(self._shares)

    @property
    def lam(self) -> float:
        """The ridge penalty that goes with the noise."""
        return private_lambda(self.sigma, self._d)

    def summary(self) -> dict[str, object]:
        """Return what the run's summary says of its privacy."""
        return _summary(DISTRIBUTED, self._budget, self.sigma)


def _summary(mode: str, budget: PrivacyBudget, sigma: float) -> dict[str, object]:
    return {
        "mode": mode,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "sigma": sigma,
        "sensitivity": sensitivity(NORM),
        "feature_norm": NORM,
        "neighbours": NEIGHBOURS,
    }
