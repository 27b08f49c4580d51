"""Fixtures of tests with nodes in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from fed3r_app.config import Value
from strategies.flower_internals import enter_run
from tests.harness.runs import AppRuns


def app_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Value],
    cache: Path | None = None,
    seed: int | None = None,
) -> AppRuns:
    """Return what runs the app with files below a test's own folder."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(cache or tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))
    return AppRuns(tmp_path / "runs", given, seed)


@pytest.fixture(autouse=True)
def _a_run() -> None:
    """Messages can only be made inside a run."""
    enter_run(1, 1, task_id=1)
