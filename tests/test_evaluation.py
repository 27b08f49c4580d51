"""The server's test images: which there are, how they are numbered and evaluated."""

from pathlib import Path

import pytest
import torch

from fed3r_app import evaluation
from fed3r_app.config import Config
from fed3r_app.core import Classifier, FeatureMap, RidgeStatistics
from fed3r_app.evaluation import EvaluationSet, ServerData, compare_heads
from tests.harness.pixels import pixels, pooled, save_sides

CPU = torch.device("cpu")


@pytest.mark.parametrize("chunk", [1, 100, 4096])
def test_an_evaluation_counts_all_images_in_chunks_of_any_size(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_CHUNK", chunk)
    Z, y = pixels(part="test")
    images = EvaluationSet(Z, y, FeatureMap(64), CPU)
    W = pooled()
    right = (Z.double() @ W).argmax(1) == y
    metrics = images.evaluate(Classifier(W, torch.ones(10, dtype=torch.bool)))
    assert (metrics.total, len(images)) == (len(y), len(y))
    assert metrics.accuracy == float(right.double().mean())


def test_a_comparison_of_methods_that_fails_is_warned_about_and_ends_no_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Z, y = pixels()
    images, stats = (
        EvaluationSet(Z, y, FeatureMap(64), CPU),
        RidgeStatistics.of(Z, y, 10),
    )
    compare_heads(Config(), stats, lambda: 0.0, images)
    assert "ridge-lambda must be > 0" in caplog.text
    caplog.clear()
    assert len(compare_heads(Config(), stats, lambda: 1.0, images)) > 1
    assert not caplog.text


def test_whatever_lies_at_the_server_of_local_images_is_for_tests(
    tmp_path: Path,
) -> None:
    save_sides(tmp_path, {"train": {"cat": 2, "owl": 3}})
    config = Config(dataset="local", data_path=str(tmp_path))
    data = ServerData.load(config)
    assert data.test_labels(("bee", "cat", "owl")).tolist() == [1, 1, 2, 2, 2]
    assert (data.class_names, data.identity(2)) == ((), None)  # the nodes' own
    with pytest.raises(ValueError, match=r"The test images: the classes must be among"):
        data.test_labels(("bee", "cat"))
    save_sides(tmp_path, {"test": {"owl": 1}})
    data = ServerData.load(config)
    assert data.test_images is not None and len(data.test_images) == 1
    nothing = ServerData.load(Config(dataset="local"))
    assert nothing.test_images is None and len(nothing.test_labels(("cat",))) == 0
