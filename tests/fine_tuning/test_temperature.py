"""The temperature: measured at the clients, and only for a start in closed form."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import Tensor
from torch.nn.functional import cross_entropy

from fed3r_app.core import LeaveOneOut
from tests.harness.pixels import pixels
from tests.harness.runs import AppRuns, assert_same_model

GRID = [10 ** (step / 4) for step in range(-12, 5)]
LP: dict[str, Any] = {"finetune": "lp", "rounds": 1, "clients_per_round": 0}


def pooled_losses(W: Tensor, temperatures: Any) -> Any:
    """Return the mean cross-entropy of all training images at some temperatures."""
    Z, y = pixels()
    return [float(cross_entropy(Z.double() @ W / t, y)) for t in temperatures]


def request_of(outcome: Any) -> Any:
    return outcome.trained[0].request.config_records["config"]


def test_auto_takes_the_least_loss_of_all_images(run: AppRuns) -> None:
    W = run(10, run_name="start", **LP | {"finetune": "none"}).model.W
    outcome = run(10, temperature="auto", **LP)
    losses = pooled_losses(W, GRID)
    best = GRID[int(np.argmin(losses))]
    assert outcome.summary["temperature"] == pytest.approx(best)
    assert request_of(outcome)["temperature"] == pytest.approx(best)
    # The paper's finding: a clear minimum below 1, not at an end of the grid.
    at_one = losses[GRID.index(1.0)]
    assert GRID[0] < best < 1
    assert min(losses) < at_one / 2
    asked = [each for each in outcome.exchanges if each.kind == "query.temperature"]
    assert sorted(each.client for each in asked) == list(range(10))  # in one exchange


def fail(message: Message, context: Context) -> None:
    if "temperature" in message.metadata.message_type:
        assert context.node_config["partition-id"] != 1, "I am ill."


def with_losses(**losses: Any) -> Any:
    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        metrics: Any = reply.get("metrics", {})
        if "losses" in metrics and context.node_config["partition-id"] == 1:
            reply["metrics"] = MetricRecord(losses)

    return {"tamper": tamper}


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        ({"before": fail}, "I am ill."),
        (with_losses(), "losses must be"),
        (with_losses(losses=[1.0]), "losses must be"),
        (with_losses(losses=[math.nan] * 17), "losses must be"),
        (with_losses(losses=[-1e9] * 17), "losses must be"),
    ],
)
def test_auto_is_measured_on_who_replies_with_losses(
    run: AppRuns, caplog: pytest.LogCaptureFixture, hook: Any, sentence: str
) -> None:
    whole = run(10, temperature="auto", run_name="whole", **LP)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        partial = run(10, temperature="auto", **hook, **LP)
    assert partial.summary["temperature"] == whole.summary["temperature"]
    assert f"Client 1 failed: {sentence}" in caplog.text


def test_a_resumed_run_keeps_the_temperature_it_measured(run: AppRuns) -> None:
    whole = run(10, temperature="auto", run_name="whole", **LP | {"rounds": 2})
    run(10, temperature="auto", **LP)
    resumed = run(10, temperature="auto", resume=True, **LP | {"rounds": 2})
    assert not any("temperature" in each.kind for each in resumed.exchanges)
    assert_same_model(resumed.model, whole.model)


@pytest.mark.parametrize("temperature", [0.1, "auto"])
def test_a_random_start_has_temperature_1(run: AppRuns, temperature: Any) -> None:
    outcome = run(4, method="none", temperature=temperature, **LP)
    assert outcome.summary["temperature"] == 1.0
    assert request_of(outcome)["temperature"] == 1.0
    assert not any("temperature" in each.kind for each in outcome.exchanges)


@pytest.mark.parametrize("temperature", [0.1, 0.7])
def test_the_reported_loss_is_at_the_temperature(
    run: AppRuns, temperature: Any
) -> None:
    W = run(10, run_name="start", **LP | {"finetune": "none"}).model.W
    still: dict[str, Any] = LP | {"lr": 1e-12, "batch_size": 2000}
    outcome = run(10, temperature=temperature, **still)
    (expected,) = pooled_losses(W.float().double(), [temperature])
    # float32 means of some hundred losses.
    assert outcome.tuning[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_softmax_step_is_that_of_the_scaled_logits(run: AppRuns) -> None:
    lr, t = 0.01, 0.1
    settings: dict[str, Any] = LP | {"batch_size": 2000, "lr": lr, "weight_decay": 0.0}
    outcome = run(1, temperature=t, **settings)
    start = outcome.trained[0].sent()["classifier.weight"]
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    Z, y = pixels()
    cross_entropy(Z.double() @ x.T / t, y).backward()
    assert x.grad is not None
    expected = (x - lr * x.grad).detach()
    assert float((outcome.model.W.T - expected).abs().max()) <= 1e-6


def test_with_few_images_each_is_left_out(run: AppRuns) -> None:
    few: dict[str, Any] = {"dataset": "digits-small", "image_size": 16, **LP}
    solved = run(4, run_name="start", **few | {"finetune": "none"})
    stats, W = solved.statistics, solved.model.W
    Z, y = pixels(dataset="digits-small", size=16)
    lam = solved.summary["ridge_lambda"]
    left_out = LeaveOneOut.of(stats, W, lam).logits(Z.double() @ W, y)
    losses = [float(cross_entropy(left_out / t, y)) for t in GRID]
    plain = [float(cross_entropy(Z.double() @ W / t, y)) for t in GRID]
    best = GRID[int(np.argmin(losses))]
    assert best > GRID[int(np.argmin(plain))]
    assert run(4, temperature="auto", **few).summary["temperature"] == best
