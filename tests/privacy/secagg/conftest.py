"""Runs under secure aggregation in this process, with clients that drop out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.fixtures import app_runs
from tests.harness.pixels import LAM, PIXELS
from tests.harness.runs import AppRuns

SETTINGS = PIXELS | {
    "partition": "iid",
    "ridge-lambda": LAM,
    "privacy": "secagg",
    "clients-per-round": 0,
    "round-timeout": 0.3,
    "max-retries": 1,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, SETTINGS)
