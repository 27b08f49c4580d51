"""A disk that is full when a file is to be replaced."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KeepsOld = Callable[..., None]


@pytest.fixture
def keeps_old(monkeypatch: pytest.MonkeyPatch) -> KeepsOld:
    """Check that a save that fails leaves the file before it and nothing else."""

    def check(path: Path, save: Callable[[], object], call: str = "replace") -> None:
        before = path.read_bytes()

        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            save()
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    return check
