"""The client of the closed form: its statistics and its evaluations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clients import local_data as module
from clients.local_data import LocalData
from clients.statistics_client import StatisticsClient
from fed3r_app.core import (
    FeatureMap,
    FeatureMoments,
    RidgeStatistics,
    predict,
    solve_ridge,
)
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.wire import name_arrays, unpack_contribution

D, C = 6, 4


def features(n: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, D)))


def labels(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(C, size=n)


def local_data(n: int, seed: int = 0) -> Any:
    """Return n samples, whose rows in the data set are 100, 101, …"""
    Z, y = features(n, seed), labels(n, seed)
    rows, unreadable = np.arange(100, 100 + n), UnreadableImages(0.0)
    return LocalData(rows, y, lambda rows: Z[rows - 100], C, unreadable, "A client")


def client(n: int, form: str = "factor", feature_map: Any = None) -> Any:
    data = local_data(n)
    return StatisticsClient(data, feature_map or FeatureMap(D), form, "float64")


def statistics(made: Any) -> Any:
    arrays, n, _ = made.fit([], {})
    return unpack_contribution(name_arrays(arrays)).statistics(), n


@pytest.mark.parametrize("form", ["factor", "packed", "dense"])
@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_fit_gives_the_statistics_of_all_samples(n: int, form: str) -> None:
    got, count = statistics(client(n, form))
    expected = RidgeStatistics.of(features(n), torch.from_numpy(labels(n)), C)
    assert count == n
    assert torch.equal(got.counts, expected.counts)
    torch.testing.assert_close(got.A, expected.A, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.b, expected.b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["factor", "packed"])
def test_chunks_don_t_show(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    whole, _ = statistics(client(50, form))
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert len(list(local_data(50).chunks(FeatureMap(D)))) == 8
    chunked, _ = statistics(client(50, form))
    torch.testing.assert_close(chunked.A, whole.A, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chunked.b, whole.b, rtol=1e-12, atol=1e-12)


def test_the_feature_map_is_applied() -> None:
    got, _ = statistics(client(9, feature_map=FeatureMap(D, intercept=True)))
    assert got.d == D + 1
    assert got.A[-1, -1] == pytest.approx(9.0)


def test_features_of_another_backbone_are_refused() -> None:
    with pytest.raises(ValueError, match=f"d = {D + 1} columns, got {D}"):
        client(3, feature_map=FeatureMap(D + 1)).fit([], {})


@pytest.mark.parametrize("n", [0, 1, 50])
def test_evaluate_counts_what_is_right(n: int) -> None:
    Z, y = features(60, seed=1), torch.from_numpy(labels(60, seed=1))
    W = solve_ridge(RidgeStatistics.of(Z, y, C), 0.1)
    present = torch.tensor([True, True, True, False])
    loss, count, metrics = client(n).evaluate([W.numpy(), present.numpy()], {})
    right = predict(features(n), W, present) == torch.from_numpy(labels(n))
    assert count == n
    assert metrics["correct"] == int(right.sum())
    assert np.isfinite(loss)
    assert (loss == 0) == (n == 0)


def test_evaluate_reads_the_features_once() -> None:
    data, read = local_data(5), []

    def read_features(rows: Any) -> Any:
        read.extend(rows)
        return data.read_features(rows)

    counted = replace(data, read_features=read_features)
    made = StatisticsClient(counted, FeatureMap(D), "factor", "float64")
    made.evaluate([np.zeros((D, C)), np.ones(C, dtype=bool)], {})
    assert read == list(data.rows)


def test_the_loss_of_equal_scores_is_that_of_guessing() -> None:
    loss, _, _ = client(20).evaluate([np.zeros((D, C)), np.ones(C, dtype=bool)], {})
    assert loss == pytest.approx(np.log(C))


def test_moments_are_those_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)
    moments, expected = client(20).moments(), FeatureMoments.of(features(20))
    assert moments.n == 20
    assert moments.squared_norms == pytest.approx(expected.squared_norms)
    torch.testing.assert_close(moments.total, expected.total)


def test_a_client_without_images_has_moments_of_zero() -> None:
    moments = client(0).moments()
    assert (moments.n, moments.squared_norms) == (0, 0.0)
    assert moments.total.tolist() == [0.0] * D
