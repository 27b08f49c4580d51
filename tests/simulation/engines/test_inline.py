"""Synthetic federations through the real apps, on the inline engine."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fed3r_app.config import Value
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.data import DataSet, GivenFeatures, load_dataset
from tests.harness.runs import Outcome

LAM = 50.0
Run = Callable[..., Outcome]


@pytest.fixture
def run(run_app: Callable[..., Path]) -> Run:
    """Run a synthetic federation."""
    given = {"backbone": "none", "partition": "natural", "upload_dtype": "float64"}

    def run(name: str, num_clients: int, dataset: str, **settings: Value) -> Outcome:
        fixed = {"dataset": dataset, "ridge_lambda": LAM, **given}
        return Outcome(run_app(name, num_clients, **{**fixed, **settings}))

    return run


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
    outcome = run("a", clients, name, clients_per_round=per_round)
    expected = pooled_weights(load_dataset(name, ""))
    assert torch.allclose(outcome.weights, expected, rtol=0, atol=1e-10)
    assert outcome.summary["clients_counted"] == clients
    assert outcome.summary["rounds"] == rounds
    assert outcome.summary["accuracy"] > 0.5


def test_the_split_does_not_show_in_the_accuracy(run: Run) -> None:
    name = "synthetic:clients=12,classes=6,features=32,mean=10"
    accuracies = {
        run(split, 12, name, partition=split).summary["accuracy"]
        for split in ("natural", "iid", "by-class")
    }
    assert len(accuracies) == 1


def test_linear_probing_and_random_features_work_on_given_features(run: Run) -> None:
    name = "synthetic:clients=6,classes=3,features=8,mean=10"
    tuned = run("lp", 6, name, finetune="lp", rounds=2)
    assert tuned.summary["accuracy"] > 0.8
    mapped = run("rf", 6, name, method="fed3r-rf", rf_dim=200, ridge_lambda="auto")
    assert mapped.summary["accuracy"] > 0.8


def test_a_backbone_that_does_not_fit_is_refused(run: Run) -> None:
    with pytest.raises(Exception, match="backbone must be 'none' with dataset"):
        run("a", 6, "synthetic", backbone="mobilenet_v2")
    with pytest.raises(Exception, match="backbone must be 'none' with dataset"):
        run("b", 6, "digits")
    with pytest.raises(Exception, match="there are no weights to train"):
        run("c", 6, "synthetic", finetune="full")
