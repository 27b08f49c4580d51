"""Images that can't be read: skipped, listed for their owner, and limited in number."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.reading import UnreadableImage
from fed3r_app.words import plural

_LOG = logging.getLogger(__name__)
_LISTED: set[str] = set()  # once a process: a client may be asked again and again


def most_unreadable(max_share: float, number: int) -> int:
    """Return how many of some images may be unreadable: one, unless the share is 0."""
    return max(1, int(max_share * number)) if max_share else 0


class UnreadableImages:
    """The rows of one image set that turned out not to be readable.

    Their names and reasons go into the log of the process that read them, and nowhere
    else.

    Parameters
    ----------
    max_share : float
        ``max-unreadable``: the share of the images that may be so; unless it is 0, one
        always may.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._rows: set[int] = set()

    def add(self, row: int, error: UnreadableImage) -> None:
        """Skip an image from now on."""
        self._rows.add(row)
        sentence = str(error)
        if sentence not in _LISTED:
            _LISTED.add(sentence)
            _LOG.warning("Skipped: %s", sentence)

    def readable(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some rows (m,) are not known to be unreadable."""
        if not self._rows:  # as a rule
            return np.ones(len(rows), dtype=bool)
        return ~np.isin(rows, list(self._rows))

    def count(self, rows: NDArray[np.int64]) -> int:
        """Return how many of some rows are known to be unreadable."""
        return int((~self.readable(rows)).sum())

    def check(self, owner: str, rows: NDArray[np.int64]) -> None:
        """Raise ValueError if too many of some rows are unreadable.

        The message may leave the owner: it holds no names and no numbers of images.
        """
        found = self.count(rows)
        if found > most_unreadable(self._max_share, len(rows)):
            images = plural(len(rows), "image")
            _LOG.warning("%s: %d of %s can't be read.", owner, found, images)
            raise ValueError(
                f"{owner} must have at most max-unreadable = {self._max_share:g} of "
                "its images unreadable, got more; the log there lists them. Put "
                "good ones of the same names in their places, or raise max-unreadable."
            )
