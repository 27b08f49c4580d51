"""Runs under secure aggregation in this process, with clients that drop out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.privacy.secagg import FixedPointEncoding
from tests.harness.fixtures import app_runs
from tests.harness.pixels import LAM, PIXELS, SIZE, pixels
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
    """Return the plain statistics of some clients' grid-rounded features.

    Summed client by client in float64, as a plain run would; then scaled.
    """

    def add_up(
        clients: Iterable[int],
        num_clients: int,
        feature_map: FeatureMap | None = None,
        max_samples: int = 1_000_000,
    ) -> RidgeStatistics:
        feature_map = feature_map or FeatureMap(SIZE * SIZE)
        grid = FixedPointEncoding(feature_map, 1.0, max_samples)
        rows = split_rows(load_dataset("digits", ""), "iid", num_clients, 0.1, 0)
        total = RidgeStatistics.zeros(feature_map.dim, 10)
        for client in clients:
            Z, y = pixels(rows[client])
            rounded = grid.round(feature_map(Z))
            total = total + RidgeStatistics.of(rounded, y, 10)
        return grid.scaled(total)

    return add_up


@pytest.fixture
def assert_equal() -> Callable[[Outcome, RidgeStatistics], None]:
    """Check that two statistics and their solutions are the same bit for bit."""

    def check(outcome: Outcome, stats: RidgeStatistics) -> None:
        got = outcome.statistics
        assert torch.equal(got.A, stats.A)
        assert torch.equal(got.b, stats.b)
        assert torch.equal(got.counts, stats.counts)
        assert torch.equal(outcome.weights, solve_ridge(stats, LAM))

    return check
