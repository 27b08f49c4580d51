"""FedAvg and FedAvgM are Flower's; running statistics are averaged beside them."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from strategies import make_optimizer
from strategies.scaffold import Scaffold
from tests.harness.runs import AppRuns, assert_same_model

UNEVEN: dict[str, Any] = {"partition": "dirichlet", "alpha": 1.0}
LP = UNEVEN | {"method": "none", "finetune": "lp", "clients_per_round": 3, "rounds": 4}
FULL: dict[str, Any] = {"method": "none", "finetune": "full", "batch_norm": "train"}


def optimizer(name: str, server_lr: float = 1.0, server_momentum: float = 0.0) -> Any:
    return make_optimizer(
        name, server_lr=server_lr, server_momentum=server_momentum, num_clients=9
    )


def weighted_mean(exchanges: Any, record: str = "arrays") -> Any:
    """Return the mean of the replies by their number of images, float64."""
    total = sum(each.num_examples for each in exchanges)
    mean: dict[Any, Any] = {}
    for each in exchanges:
        for name, value in each.received(record).items():
            part = each.num_examples / total * value.astype(float)
            mean[name] = mean.get(name, 0) + part
    return mean


def assert_near(got: Any, expected: Any) -> None:
    """Compare to float32's rounding of a mean of a few values."""
    for name, value in expected.items():
        assert np.abs(got[name] - value).max() <= 1e-6 * np.abs(value).max(), name


def test_fedavg_and_fedavgm_are_flowers_own_classes() -> None:
    assert type(optimizer("fedavg")) is FedAvg
    assert type(optimizer("fedavgm", server_momentum=0.9)) is FedAvgM
    assert type(optimizer("scaffold")) is Scaffold and issubclass(Scaffold, Strategy)
    # A server step of FedAvg is FedAvgM without momentum.
    slower = optimizer("fedavg", server_lr=0.1)
    assert type(slower) is FedAvgM
    assert (slower.server_learning_rate, slower.server_momentum) == (0.1, 0.0)


# Without momentum and at a rate of 1, what is sent next is the mean of the replies.
@pytest.mark.parametrize(
    ("name", "momentum", "server_lr"),
    [
        ("fedavg", 0.0, 1.0),
        ("fedavg", 0.0, 0.1),
        ("fedavgm", 0.9, 1.0),
        ("fedavgm", 0.9, 0.1),
    ],
)
def test_the_server_steps_with_momentum(
    run: AppRuns, name: str, momentum: float, server_lr: float
) -> None:
    step: dict[str, Any] = {"server_momentum": momentum, "server_lr": server_lr}
    outcome = run(6, optimizer=name, **step, **LP)
    x = outcome.round(1)[0].sent()["classifier.weight"].astype(float)
    velocity = np.zeros_like(x)
    for number in (1, 2, 3):
        mean = weighted_mean(outcome.round(number))["classifier.weight"]
        velocity = momentum * velocity + (x - mean)
        x = x - server_lr * velocity
        after = outcome.round(number + 1)[0].sent()
        assert_near(after, {"classifier.weight": x})


def test_fedavgm_has_the_papers_momentum_unless_told(run: AppRuns) -> None:
    told = run(4, optimizer="fedavgm", server_momentum=0.9, run_name="told", **LP)
    untold = run(4, optimizer="fedavgm", run_name="untold", **LP)
    plain = run(4, optimizer="fedavg", run_name="plain", **LP)
    assert torch.equal(untold.model.W, told.model.W)
    assert not torch.equal(untold.model.W, plain.model.W)


@pytest.mark.parametrize(
    "name", ["fedavgm", pytest.param("scaffold", marks=pytest.mark.slow)]
)
def test_running_statistics_are_averaged_plainly_and_travel_apart(
    run: AppRuns, few_images: Any, name: str
) -> None:
    # Three clients share four classes: one has two of them.
    outcome = run(3, optimizer=name, **few_images | FULL | {"rounds": 3})
    assert len({each.num_examples for each in outcome.trained}) > 1
    key = "running-statistics"
    for number in (1, 2):
        after = outcome.round(number + 1)[0].sent(key)
        assert_near(after, weighted_mean(outcome.round(number), key))
    saved = {k: v.numpy() for k, v in outcome.model.backbone_arrays.items()}
    assert_near(saved, weighted_mean(outcome.round(3), key))
    variances = [v for k, v in saved.items() if k.endswith("running_var")]
    assert len(variances) == 56  # the batch norms of the network
    assert all((value > 0).all() for value in variances)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_only_means_and_variances_travel_and_none_has_a_control_variate(
    run: AppRuns, few_images: Any, name: str
) -> None:
    outcome = run(2, optimizer=name, **few_images | FULL | {"rounds": 1})
    for each in outcome.trained:
        for content in (each.request, each.reply):
            for key, record in content.array_records.items():
                running = [k.endswith(("running_mean", "running_var")) for k in record]
                assert all(running) if key == "running-statistics" else not any(running)
                assert not any("num_batches_tracked" in k for k in record)


def test_frozen_batch_norm_sends_and_saves_no_running_statistics(
    run: AppRuns, few_images: Any
) -> None:
    outcome = run(2, finetune="feat", **few_images)
    for each in outcome.trained:
        assert "running-statistics" not in each.request
        assert "running-statistics" not in each.reply
    assert not any("running" in name for name in outcome.model.backbone_arrays)


def test_a_frozen_run_is_not_touched_by_a_run_before_it(
    run: AppRuns, few_images: Any
) -> None:
    frozen: dict[str, Any] = few_images | {"finetune": "feat", "rounds": 1}
    alone = run(2, run_name="alone", **frozen)
    run(2, run_name="between", **frozen, batch_norm="train", lr=0.1)
    after = run(2, run_name="after", **frozen)
    assert_same_model(after.model, alone.model)
