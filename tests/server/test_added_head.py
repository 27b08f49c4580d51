"""A head that is registered is all a new method needs, through the whole app.

The head has a bias, and works with random features, too.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fed3r_app import cli
from fed3r_app.config import Config
from fed3r_app.core import HEADS, HeadOptions, RidgeStatistics
from fed3r_app.core.heads import Head
from fed3r_app.core.names import METHODS, Method
from tests.harness.fixtures import app_runs
from tests.harness.pixels import PIXELS, assert_close, pixels, save_sides
from tests.harness.runs import AppRuns, Outcome

EXACT = PIXELS | {
    "method": "nearest-mean",
    "upload-dtype": "float64",
    "clients-per-round": 0,
    "rf-dim": 100,
    "rf-sigma": 3.0,
}


def nearest_mean(stats: RidgeStatistics, options: HeadOptions) -> tuple[Tensor, Tensor]:
    """Return W and bias of the class whose mean is the nearest."""
    means = stats.b / stats.counts.clamp(min=1)
    return means, -means.square().sum(dim=0) / 2


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    monkeypatch.setitem(HEADS, "nearest-mean", Head(nearest_mean))
    monkeypatch.setitem(METHODS, "nearest-mean", Method("nearest-mean"))
    monkeypatch.setitem(METHODS, "nearest-mean-rf", Method("nearest-mean", True))
    return app_runs(tmp_path, monkeypatch, EXACT)


def assert_pooled(outcome: Outcome, tolerance: float = 1e-9) -> None:
    """Check W and bias of the model file, and that the evaluation uses the bias."""
    model, (Z, y) = outcome.model, pixels()
    stats = RidgeStatistics.of(model.feature_map(Z), y, 10)
    W, bias = nearest_mean(stats, HeadOptions())
    assert model.classifier.bias is not None
    assert_close(model.W, W, tolerance)
    assert_close(model.classifier.bias, bias, tolerance)
    Z, y = pixels(part="test")
    scores = model.feature_map(Z).double() @ model.W
    assert outcome.summary["accuracy"] == share(scores + model.classifier.bias, y)
    assert outcome.summary["accuracy"] != share(scores, y)


def share(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(dim=1) == y).double().mean())


@pytest.mark.parametrize("method", ["nearest-mean", "nearest-mean-rf"])
@pytest.mark.parametrize("privacy", ["none", "secagg"])
def test_w_and_bias_are_those_of_the_pooled_statistics(
    run: AppRuns, method: str, privacy: str
) -> None:
    outcome = run(5, method=method, privacy=privacy)
    assert_pooled(outcome, 1e-9 if privacy == "none" else 1e-3)
    assert outcome.summary["method"] == method
    assert outcome.summary["ridge_lambda"] is None


def test_a_saved_run_is_solved_anew_with_its_bias(run: AppRuns) -> None:
    outcome = run(5)
    assert outcome.summary["heads"]["nearest-mean"] == outcome.summary["accuracy"]
    (outcome.directory / "model.safetensors").unlink()
    assert cli.main(["solve", str(outcome.directory)]) == 0
    assert_pooled(outcome)


def test_clients_evaluate_with_the_bias(run: AppRuns) -> None:
    outcome = run(5, client_evaluation=True)
    Z, y = pixels()
    assert outcome.summary["client_accuracy"] == share(outcome.model.scores(Z), y)
    assert outcome.summary["client_accuracy"] != share(Z.double() @ outcome.weights, y)


@pytest.mark.parametrize("method", ["nearest-mean", "nearest-mean-rf"])
def test_linear_probing_starts_from_it(run: AppRuns, method: str) -> None:
    start = run(5, run_name="start", method=method).model.classifier
    outcome = run(5, method=method, finetune="lp", rounds=1, lr=1e-12)
    sent = outcome.trained[0].sent()
    assert start.bias is not None
    assert torch.equal(torch.tensor(sent["classifier.weight"]), start.W.T.float())
    assert torch.equal(torch.tensor(sent["classifier.bias"]), start.bias.float())
    assert outcome.summary["accuracy"] == outcome.summary["closed_form_accuracy"]


def test_a_whole_network_is_tuned_from_it_and_probed(
    run: AppRuns, tmp_path: Path
) -> None:
    counts = {"left": 4, "right": 4}
    folder = save_sides(tmp_path / "images", {"train": counts, "test": counts})
    settings: dict[str, Any] = {"dataset": "imagefolder", "data_path": str(folder)}
    settings |= {"backbone": "shufflenet_v2_x0_5", "weights": "random"}
    outcome = run(2, finetune="full", rounds=1, probe=True, image_size=32, **settings)
    sent = outcome.trained[0].sent()
    means, bias = sent["classifier.weight"], sent["classifier.bias"]
    assert bias == pytest.approx(-(means**2).sum(axis=1) / 2, rel=1e-5)
    assert outcome.summary["probe_accuracy"] is not None


def test_a_name_that_is_not_registered_is_refused_with_those_that_are() -> None:
    names = "fed3r, fed3r-rf, fedncm, lda, none"
    with pytest.raises(ValueError, match=f"one of {names}, got 'nearest-mean'"):
        Config.from_run_config({"method": "nearest-mean"})
