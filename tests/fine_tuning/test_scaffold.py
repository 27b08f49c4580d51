"""Scaffold against the algorithm written down plainly, on softmax regression."""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from torch import Tensor

from fed3r_app.data import load_dataset, split_rows
from tests.harness.pixels import pixels
from tests.harness.runs import AppRuns

K, CLASSES = 6, 10
# Clients of different sizes, each step on all of a client's images: no order to know.
UNEVEN: dict[str, Any] = {"partition": "dirichlet", "alpha": 1.0, "batch_size": 2000}
LP: dict[str, Any] = {"method": "none", "finetune": "lp", "optimizer": "scaffold"}
CONVEX = UNEVEN | LP | {"lr": 0.3, "weight_decay": 1e-2}
# Each float32 step errs by a few eps = 6e-8 of the weights, the division by steps
# times lr is undone by the next step's lr, and the problem is contracting: over tens
# of steps the errors add up to tens of eps.
TOLERANCE = 1e-5


def clients_data() -> Any:
    """Return pixels (n_k, 64) and labels (n_k,) of each client, float64."""
    parts = split_rows(load_dataset("digits", ""), "dirichlet", K, 1.0, 0)
    pairs = (pixels(rows) for rows in parts)
    return [(Z.double().numpy(), y.numpy()) for Z, y in pairs]


def gradient(x: Any, Z: Tensor, y: Tensor) -> Any:
    """Return the gradient (C, d) of the mean cross-entropy of softmax(Z x')."""
    scores = Z @ x.T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ Z / len(y)


def scaffold(
    x: Any, data: Any, sampler: Any, steps: Any, lr: Any, decay: Any, server_lr: Any
) -> Any:
    """Return x and c after Algorithm 1 of the Scaffold paper, option II."""
    c, own = np.zeros_like(x), [np.zeros_like(x) for _ in data]
    for cohort in sampler:
        moves, changes = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(steps):
                y -= lr * (gradient(y, *data[i]) + decay * y + c - own[i])
            new = own[i] - c + (x - y) / (steps * lr)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + server_lr * np.mean(moves, axis=0)
        c = c + len(cohort) / len(data) * np.mean(changes, axis=0)
    return x, c


def start_of(outcome: Any) -> Any:
    return outcome.trained[0].sent()["classifier.weight"].astype(float)


def assert_near(got: Any, expected: Any) -> None:
    assert np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_rounds_with_some_of_the_clients_are_those_of_the_algorithm(
    run: AppRuns, server_lr: Any
) -> None:
    outcome = run(
        K, clients_per_round=3, rounds=8, local_epochs=4, server_lr=server_lr, **CONVEX
    )
    data = clients_data()
    assert len({len(y) for _, y in data}) == K  # of different sizes
    sampler = list(outcome.sampler().values())
    assert len({tuple(cohort) for cohort in sampler}) > 1
    x, c = scaffold(
        start_of(outcome), data, sampler[:-1], 4, 0.3, 1e-2, server_lr=server_lr
    )
    last = outcome.trained[-1]
    assert_near(last.sent()["classifier.weight"], x)
    assert_near(last.sent("control")["classifier.weight"], c)
    x, _ = scaffold(start_of(outcome), data, sampler, 4, 0.3, 1e-2, server_lr)
    assert_near(outcome.model.W.T.numpy(), x)


def test_all_clients_and_one_step_are_gradient_descent(run: AppRuns) -> None:
    rounds, lr = 6, 0.3
    outcome = run(K, clients_per_round=0, rounds=rounds, local_epochs=1, **CONVEX)
    data, x = clients_data(), start_of(outcome)
    for _ in range(rounds):
        # Of the mean over clients, each counting the same whatever its size.
        x = x - lr * (np.mean([gradient(x, *each) for each in data], axis=0) + 1e-2 * x)
    assert_near(outcome.model.W.T.numpy(), x)


def test_with_batches_the_variate_moves_by_the_way_per_step(run: AppRuns) -> None:
    settings: dict[str, Any] = CONVEX | {"batch_size": 32, "lr": 0.05}
    outcome = run(K, clients_per_round=4, rounds=3, local_epochs=2, **settings)
    for each in outcome.trained:
        n = each.num_examples
        # A last image left alone joins the batch before it.
        steps = 2 * max((n + 30) // 32, 1)
        for name, x in each.sent().items():
            c = each.sent("control")[name].astype(float)
            moved = x.astype(float) - each.received()[name]
            change = each.received("control")[name]
            expected = moved / (steps * 0.05) - c
            # x - y has lost digits of x, not of itself.
            assert np.abs(change - expected).max() <= 1e-5 * np.abs(x).max() / 0.05


def test_the_servers_variate_is_the_mean_of_the_clients(run: AppRuns) -> None:
    outcome = run(K, clients_per_round=2, rounds=6, local_epochs=2, **CONVEX)
    own: dict[Any, Any] = {}
    for each in outcome.trained:
        if each.round < 6:
            change = each.received("control")["classifier.weight"].astype(float)
            own[each.client] = own.get(each.client, 0) + change
    last = outcome.round(6)[0]
    # Clients that never took part have zero, and count among the K.
    assert_near(last.sent("control")["classifier.weight"], sum(own.values()) / K)


def test_a_lost_state_starts_again_at_zero_with_a_warning(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    lost = []

    def lose(message: Message, context: Context) -> None:
        config = message.content.config_records["config"]
        if config.get("server-round") == 3 and context.node_config["partition-id"] == 2:
            lost.append("control" in context.state)
            context.state.clear()

    caplog.set_level(logging.WARNING, logger="flwr")
    run(K, clients_per_round=2, rounds=4, run_name="nothing is lost", **CONVEX)
    assert "lost its control variate" not in caplog.text
    settings = CONVEX | {"clients_per_round": 0, "rounds": 4, "local_epochs": 2}
    outcome = run(K, before=lose, **settings)
    assert lost == [True]
    said = [record.getMessage() for record in caplog.records]
    assert sum("Client 2 lost its control variate" in line for line in said) == 1
    assert [line["clients_trained"] for line in outcome.tuning] == [K] * 4
    # Zero again: what it changed by in that round is all of its variate.
    by_round = {each.round: each for each in outcome.trained if each.client == 2}
    weight = "classifier.weight"
    y, c = by_round[3].received()[weight], by_round[3].sent("control")[weight]
    Z, labels = clients_data()[2]
    expected = by_round[3].sent()[weight].astype(float)
    for _ in range(2):
        step = gradient(expected, Z, labels) + 1e-2 * expected + c
        expected = expected - 0.3 * step
    assert_near(y, expected)
