"""Calls of a function, noted while it works as before."""

from typing import Any

import pytest


def spy(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Any]:
    """Return the list to which each call of ``owner.name`` adds its arguments."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
    return calls
