"""The ridge penalty of a run's classifiers: given, of the noise, or cross-validated."""

from __future__ import annotations

from fed3r_app.core import RidgeStatistics, select_lambda
from strategies.release import Release


class PenaltySchedule:
    """Chooses the penalty of each classifier on the way to the last one.

    Cross-validation takes several times as long as solving. So on the way a penalty is
    kept until there are twice as many samples; the last classifier has its own.

    Parameters
    ----------
    given : float or None
        The penalty of all classifiers; None chooses it.
    release : Release or None
        What makes the sums private; cross-validation would take noise for signal.
    """

    def __init__(self, given: float | None, release: Release | None = None) -> None:
        self._given = given
        self._release = release
        self._chosen = 0.0
        self._num_samples = 0  # of which it was chosen

    def choose(self, stats: RidgeStatistics, *, last: bool) -> float:
        """Return the penalty for the statistics, the last ones or some on the way."""
        if self._given is not None:
            return self._given
        if self._release:
            return self._release.lam
        if last or stats.n >= 2 * self._num_samples:
            self._chosen, self._num_samples = select_lambda(stats), stats.n
        return self._chosen
