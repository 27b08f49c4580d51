"""Errors that the parts of a run tell apart."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

# Of a file or its name, not of the machine or the network: they stay.
_LASTING = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM),
)


class RunError(RuntimeError):
    """A run that did not complete; the message says why."""


class RunStopped(RunError):
    """A run that a signal has ended; the message says what of it is saved."""


class PermanentError(ValueError):
    """Wrong settings or data: a client that is asked again fails again."""


class SettingsError(ValueError):
    """Settings that can't be right, found before anything was started."""


def is_transient(error: BaseException) -> bool:
    """Return whether an error of the system may pass: a drive that is away, say."""
    return isinstance(error, OSError) and error.errno not in (None, *_LASTING)


@contextmanager
def permanent() -> Iterator[None]:
    """Raise what is wrong with settings or data as a PermanentError.

    What may pass is raised as it is.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if is_transient(error):
            raise
        raise PermanentError(str(error)) from error


@contextmanager
def before_start() -> Iterator[None]:
    """Raise what is wrong with settings or files as a SettingsError."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SettingsError(str(error)) from error
