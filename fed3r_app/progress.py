"""Progress of what takes longer than a few seconds, as lines of log."""

from __future__ import annotations

import time
from logging import INFO

from flwr.common.logger import log

_SECONDS = 5.0  # between two lines: few in a log of hours, soon enough to be seen


class Progress:
    """Logs how much is done, not more often than every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Record that so many are done."""
        if time.monotonic() - self._last > _SECONDS:
            self._last = time.monotonic()
            log(INFO, "%s: %d of %d", self._what, done, total)
