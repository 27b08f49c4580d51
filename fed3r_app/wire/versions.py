"""The version of this code and of the one that is installed, and whether two agree.

A node runs the code that comes with the run. What is installed there decides on its
libraries, and on the commands of whoever looks after it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

CODE_VERSION = "0.2.0"  # as in pyproject.toml
DISTRIBUTION = "fed3r-flower"


def installed_version() -> str:
    """Return the version of the installed distribution; "" where there is none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


def agree(one: str, other: str) -> bool:
    """Return whether two versions are of one minor version, or one is not known."""
    return not one or not other or one.split(".")[:2] == other.split(".")[:2]
