"""Runs under secure aggregation in this process, with clients that drop out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fed3r_app.core import RidgeStatistics, solve_ridge
from tests.harness.fixtures import app_runs
from tests.harness.pixels import LAM, PIXELS, assert_same_statistics, rounded_statistics
from tests.harness.runs import AppRuns, Outcome

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


@pytest.fixture
def plain() -> Callable[..., RidgeStatistics]:
    return rounded_statistics


@pytest.fixture
def assert_equal() -> Callable[[Outcome, RidgeStatistics], None]:
    """Check that two statistics and their solutions are the same bit for bit."""

    def check(outcome: Outcome, stats: RidgeStatistics) -> None:
        assert_same_statistics(outcome.statistics, stats)
        assert torch.equal(outcome.weights, solve_ridge(stats, LAM))

    return check
