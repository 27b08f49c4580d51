"""One process at a time, by a lock on a file."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(file: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file; it ends with the process, however that ends.

    Parameters
    ----------
    file : Path
        Made if it is not there. Nothing is read from it or written to it.
    refusal : str
        The sentence of the OSError if another process holds the lock.
    """
    with file.open("ab") as opened:  # network file systems want it open for writing
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(refusal) from error
        yield
