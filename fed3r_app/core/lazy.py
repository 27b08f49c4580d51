"""Public names of a package, imported when asked for: many a process needs no torch."""

import sys
from collections.abc import Sequence
from importlib import import_module


def find_name(package: str, modules: Sequence[str], name: str) -> object:
    """Return a name in ``__all__`` of a package, from its first module that has it."""
    if name in sys.modules[package].__all__:
        for module in modules:
            found = import_module(f"{package}.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
