"""The classifiers of a run, from its statistics: which head, which ridge penalty."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fed3r_app.core import (
    HEADS,
    Classifier,
    HeadOptions,
    RidgeStatistics,
    select_lambda,
    solve_head,
)


@dataclass(eq=False)
class HeadSolver:
    """Solves a head for the statistics of each evaluation.

    Generalised cross-validation takes several times as long as solving. So before the
    last classifier a penalty is kept until there are twice as many samples.

    Parameters
    ----------
    head : str
        Name in ``fed3r_app.core.HEADS``.
    given : HeadOptions
        With the penalty of all classifiers; None chooses it by cross-validation.

    Attributes
    ----------
    ridge_lambda : float or None
        The penalty of the last classifier; None before the first, and for heads
        without one.
    """

    head: str = "ridge"
    given: HeadOptions = field(default_factory=HeadOptions)
    ridge_lambda: float | None = field(default=None, init=False)
    _num_samples: int = 0  # of which a penalty was last chosen

    def solve(
        self, stats: RidgeStatistics, *, last: bool, noise_lambda: float | None = None
    ) -> Classifier:
        """Return the classifier of the statistics.

        Parameters
        ----------
        stats : RidgeStatistics
            Sum over the clients so far.
        last : bool
            Whether no more will come: the penalty is then chosen anew.
        noise_lambda : float or None
            The penalty that goes with the noise of differential privacy, which
            cross-validation would take for signal.
        """
        if HEADS[self.head].uses_lambda:
            self.ridge_lambda = self.choose_lambda(stats, last, noise_lambda)
        options = replace(self.given, lam=self.ridge_lambda)
        return solve_head(self.head, stats, options)

    def choose_lambda(
        self, stats: RidgeStatistics, last: bool, noise_lambda: float | None
    ) -> float:
        """Return the penalty for the statistics; for the parameters see ``solve``."""
        if self.given.lam is not None:
            return self.given.lam
        if noise_lambda is not None:
            return noise_lambda
        if self.ridge_lambda is None or last or stats.n >= 2 * self._num_samples:
            self._num_samples = stats.n
            return select_lambda(stats)
        return self.ridge_lambda
