"""The mark of a client that has answered the last request of secure aggregation."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_ANSWERED = (
    "this client has answered the last request of secure aggregation in this run, and "
    "does so once only"
)


_MASKED = "a vector is masked once in an attempt: its masks must not be used again"


class UnmaskMarker:
    """Files that say: this client has helped to unmask a sum of this run.

    And: it has given a masked vector away in an attempt, under masks that must hide no
    other one.

    A second answer, in another group, could show the server the difference of two
    sums. Flower's state dies with the node, so the mark is on disk: in a folder that
    outlives the node, by Flower's id of the run and the client's name.
    """

    def __init__(self, folder: Path, run_id: int, client_id: str) -> None:
        name = hashlib.sha256(client_id.encode()).hexdigest()[:32]
        self._path = folder / str(run_id) / name

    def check(self) -> None:
        """Raise ValueError if the mark is there."""
        if self._path.exists():
            raise ValueError(_ANSWERED)

    def set(self) -> None:
        """Set the mark, to stay; raise ValueError if it is there already."""
        _create(self._path, _ANSWERED)

    def set_masked(self, attempt: str) -> None:
        """Mark an attempt, to stay; raise ValueError if it is marked already."""
        name = hashlib.sha256(attempt.encode(errors="replace")).hexdigest()[:32]
        _create(self._path.with_name(f"{self._path.name}-{name}"), _MASKED)


def _create(path: Path, objection: str) -> None:
    """Create a file, to stay; raise ValueError with the objection if it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Exclusive: of two processes that answer at once only one gets through.
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise ValueError(objection) from None
    for descriptor in (file, os.open(path.parent, os.O_RDONLY)):
        os.fsync(descriptor)
        os.close(descriptor)
