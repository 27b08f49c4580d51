"""The error of a run that can't continue."""


class RunError(RuntimeError):
    """A run that did not come to its end, with a sentence that says why."""
