"""Secure aggregation on the real engine, with fifty simulated clients."""

from typing import Any

import pytest

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.privacy.secagg import FixedPointEncoding
from tests.harness.pixels import PIXELS, SIZE, assert_same_statistics, pixels


@pytest.mark.slow
def test_fifty_simulated_clients_give_the_plain_sums_bit_for_bit(engine: Any) -> None:
    settings = PIXELS | {"privacy": "secagg", "partition": "dirichlet"}
    outcome = engine.run("secagg", 50, processes=2, clients_per_round=20, **settings)
    assert outcome.completed, outcome.output
    assert outcome.summary["clients_counted"] == 50
    assert outcome.summary["rounds"] == 3  # two groups a round
    Z, y = pixels()
    grid = FixedPointEncoding(FeatureMap(SIZE * SIZE), 1.0, 1_000_000)
    plain = RidgeStatistics.of(grid.round(Z), y, 10)
    assert_same_statistics(outcome.statistics, plain)
