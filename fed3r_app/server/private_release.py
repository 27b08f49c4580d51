"""The one noisy release of a run with differential privacy."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO

from flwr.common.logger import log

from fed3r_app.core import RidgeStatistics
from fed3r_app.core.gaussian_release import private_lambda, release, sensitivity
from fed3r_app.privacy import NEIGHBOURS, NORM, PrivacyBudget, secure_normals
from fed3r_app.private_settings import CENTRAL


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

    mode = CENTRAL

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
        return {
            "mode": self.mode,
            "epsilon": self._budget.epsilon,
            "delta": self._budget.delta,
            "sigma": self.sigma,
            "sensitivity": sensitivity(NORM),
            "feature_norm": NORM,
            "neighbours": NEIGHBOURS,
        }
