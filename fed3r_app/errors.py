"""Errors that the parts of a run tell apart."""

from collections.abc import Iterator
from contextlib import contextmanager


class RunError(RuntimeError):
    """A run that did not complete; the message says why."""


class PermanentError(ValueError):
    """Wrong settings or data: a client that is asked again fails again."""


@contextmanager
def permanent() -> Iterator[None]:
    """Raise what is wrong with settings or data as a PermanentError."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise PermanentError(str(error)) from error
