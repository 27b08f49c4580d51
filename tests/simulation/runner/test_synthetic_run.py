"""Synthetic federations through the real apps, on the inline engine."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fed3r_app import client_app, server_app
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset
from fed3r_app.runs.model_file import load_model
from simulation.engines.inline import default_run_config, run_inline

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
LAM = 50.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a synthetic federation; return its directory."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))

    def run(name, num_clients, dataset, **settings):
        config = default_run_config(PYPROJECT) | {
            "dataset": dataset,
            "backbone": "none",
            "partition": "natural",
            "upload-dtype": "float64",
            "ridge-lambda": LAM,
            "output-dir": str(tmp_path),
            "run-name": name,
        }
        config |= {key.replace("_", "-"): value for key, value in settings.items()}
        run_inline(server_app.app, client_app.app, num_clients, config)
        return tmp_path / name

    return run


def read_summary(directory):
    return json.loads((directory / "summary.json").read_text())


def pooled_weights(dataset):
    train = dataset.train
    Z = torch.from_numpy(train.features(np.arange(len(train))))
    y = torch.from_numpy(train.labels.copy())
    stats = RidgeStatistics.of(Z, y, len(dataset.class_names))
    return solve_ridge(stats, LAM)


def check_run(directory, name, num_clients, rounds):
    """The classifier is the pooled one, and everybody was counted, once."""
    W = load_model(directory / "model.safetensors").W
    expected = pooled_weights(load_dataset(name, ""))
    assert torch.allclose(W, expected, rtol=0, atol=1e-10)
    summary = read_summary(directory)
    assert summary["clients_counted"] == num_clients
    assert summary["rounds"] == rounds
    assert summary["accuracy"] > 0.5


def test_a_synthetic_federation_gives_the_pooled_solution(run):
    name = "synthetic:clients=30,classes=5,features=16,mean=8"
    directory = run("a", 30, name, clients_per_round=7)
    check_run(directory, name, num_clients=30, rounds=5)


def test_three_hundred_clients_in_thirty_rounds_give_the_pooled_solution(run):
    name = "synthetic:clients=300,classes=40,features=64,mean=13"
    directory = run("a", 300, name, clients_per_round=10)
    check_run(directory, name, num_clients=300, rounds=30)


def test_the_split_does_not_show_in_the_accuracy(run):
    name = "synthetic:clients=12,classes=6,features=32,mean=10"
    accuracies = {
        read_summary(run(split, 12, name, partition=split))["accuracy"]
        for split in ("natural", "iid", "by-class")
    }
    assert len(accuracies) == 1


def test_linear_probing_and_random_features_work_on_given_features(run):
    name = "synthetic:clients=6,classes=3,features=8,mean=10"
    tuned = run("lp", 6, name, finetune="lp", rounds=2)
    assert read_summary(tuned)["accuracy"] > 0.8
    mapped = run("rf", 6, name, method="fed3r-rf", rf_dim=200, ridge_lambda="auto")
    assert read_summary(mapped)["accuracy"] > 0.8


def test_a_backbone_that_does_not_fit_is_refused(run):
    with pytest.raises(Exception, match="backbone must be 'none' with dataset"):
        run("a", 6, "synthetic", backbone="mobilenet_v2")
    with pytest.raises(Exception, match="backbone must be 'none' with dataset"):
        run("b", 6, "digits")
    with pytest.raises(Exception, match=r"there are no weights to train"):
        run("c", 6, "synthetic", finetune="full")
