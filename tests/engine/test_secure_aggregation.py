"""Secure aggregation on the real engine, with fifty simulated clients."""

from typing import Any

import pytest
import torch

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.data import load_dataset
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.secagg import FixedPointEncoding
from fed3r_app.runs.snapshots import load_snapshot

SIZE = 8


@pytest.mark.slow
def test_fifty_simulated_clients_give_the_plain_sums_bit_for_bit(engine: Any) -> None:
    outcome = engine.run(
        "secagg",
        50,
        processes=2,
        privacy="secagg",
        partition="dirichlet",
        clients_per_round=20,
        backbone="pixels",
        image_size=SIZE,
    )
    assert outcome.completed, outcome.output
    assert outcome.summary["clients_counted"] == 50
    assert outcome.summary["rounds"] == 3  # two groups a round
    train = load_dataset("digits", "").train
    rows = torch.arange(len(train)).numpy()
    backbone = load_backbone(BackboneSpec("pixels", "packaged", SIZE))
    Z = extract_features(backbone, train, rows, device=torch.device("cpu"))
    grid = FixedPointEncoding(FeatureMap(SIZE * SIZE), 1.0, 1_000_000)
    plain = RidgeStatistics.of(grid.round(Z), torch.from_numpy(train.labels.copy()), 10)
    stats = load_snapshot(outcome.directory / "statistics.safetensors").statistics
    assert torch.equal(stats.A, plain.A)
    assert torch.equal(stats.b, plain.b)
    assert torch.equal(stats.counts, plain.counts)
