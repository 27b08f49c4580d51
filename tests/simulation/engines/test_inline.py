"""Synthetic federations through the real apps, on the inline engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.config import Value
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.data import DataSet, GivenFeatures, load_dataset
from fed3r_app.runs.model_file import load_model

LAM = 50.0
Run = Callable[..., Path]


@pytest.fixture
def run(run_app: Run) -> Run:
    """Run a synthetic federation; return its directory."""
    given = {"backbone": "none", "partition": "natural", "upload_dtype": "float64"}

    def run(name: str, num_clients: int, dataset: str, **settings: Value) -> Path:
        fixed = {"dataset": dataset, "ridge_lambda": LAM, **given}
        return run_app(name, num_clients, **{**fixed, **settings})

    return run


def read_summary(directory: Path) -> Any:
    return json.loads((directory / "summary.json").read_text())


def pooled_weights(dataset: DataSet) -> torch.Tensor:
    train = dataset.train
    assert isinstance(train, GivenFeatures)
    Z = torch.from_numpy(train.features(np.arange(len(train))))
    y = torch.from_numpy(train.labels.copy())
    stats = RidgeStatistics.of(Z, y, len(dataset.class_names))
    return solve_ridge(stats, LAM)


@pytest.mark.parametrize(
    ("clients", "shape", "per_round", "rounds"),
    [(30, "classes=5,features=16", 7, 5), (300, "classes=40,features=64", 10, 30)],
)
def test_a_synthetic_federation_gives_the_pooled_solution(
    run: Run, clients: int, shape: str, per_round: int, rounds: int
) -> None:
    name = f"synthetic:clients={clients},{shape},mean=10"
    directory = run("a", clients, name, clients_per_round=per_round)
    W = load_model(directory / "model.safetensors").W
    assert torch.allclose(W, pooled_weights(load_dataset(name, "")), rtol=0, atol=1e-10)
    summary = read_summary(directory)
    assert summary["clients_counted"] == clients
    assert summary["rounds"] == rounds
    assert summary["accuracy"] > 0.5


def test_the_split_does_not_show_in_the_accuracy(run: Run) -> None:
    name = "synthetic:clients=12,classes=6,features=32,mean=10"
    accuracies = {
        read_summary(run(split, 12, name, partition=split))["accuracy"]
        for split in ("natural", "iid", "by-class")
    }
    assert len(accuracies) == 1


def test_linear_probing_and_random_features_work_on_given_features(run: Run) -> None:
    name = "synthetic:clients=6,classes=3,features=8,mean=10"
    tuned = run("lp", 6, name, finetune="lp", rounds=2)
    assert read_summary(tuned)["accuracy"] > 0.8
    mapped = run("rf", 6, name, method="fed3r-rf", rf_dim=200, ridge_lambda="auto")
    assert read_summary(mapped)["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("dataset", "settings", "words"),
    [
        ("synthetic", {"backbone": "mobilenet_v2"}, "must be 'none' with dataset"),
        ("digits", {}, "backbone must be 'none' with dataset"),
        ("synthetic", {"finetune": "full"}, "there are no weights to train"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused(
    run: Run, dataset: str, settings: dict[str, Value], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        run("a", 6, dataset, **settings)
