"""The error of a run that can't continue."""


class RunError(RuntimeError):
    """A run that did not complete; the message says why."""
