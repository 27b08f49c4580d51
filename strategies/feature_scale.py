"""How large the features of a client may be where no range of them is known."""

from __future__ import annotations

from collections.abc import Mapping

from fed3r_app.core import Contribution, RidgeStatistics
from fed3r_app.core.outliers import far_above_others

_ENOUGH = 5  # contributions whose median is hard to move


class FeatureScale:
    """Compares clients' mean squared norms trace(A) / n with each other.

    Parameters
    ----------
    start : RidgeStatistics
        What was counted before: one more to compare with.
    """

    def __init__(self, start: RidgeStatistics) -> None:
        self._known = [_mean_square(start)] if start.n else []

    def can_judge(self, number: int) -> bool:
        """Return whether so many contributions are enough to be compared."""
        return len(self._known) + number >= _ENOUGH

    def refusals(self, contributions: Mapping[str, Contribution]) -> dict[str, str]:
        """Return why contributions are refused; the others are known from now on."""
        values = {k: _mean_square(each) for k, each in contributions.items() if each.n}
        far = far_above_others(values, self._known)
        self._known += [value for k, value in values.items() if k not in far]
        return {
            client: f"trace(A) / n must be <= {most:.6g}, ten times the median of the "
            f"other clients, got {values[client]:.6g}. Does it use another backbone?"
            for client, most in far.items()
        }


def _mean_square(contribution: Contribution) -> float:
    return float(contribution.diagonal.sum()) / contribution.n
