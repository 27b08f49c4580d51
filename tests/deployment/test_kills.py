"""kill -9 of any process at any moment: the run ends with the W of an undisturbed one.

The moments are drawn with a seed over the life of an undisturbed run. What is killed is
started again, and a run that did not complete is resumed, as an operator would.
"""

import os
import signal
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.cli import main
from fed3r_app.deployment.local import SUPERLINK
from tests.harness.deployment import CLIENT_APP, SERVER_APP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_NODES, NUM_IMAGES = 3, 1442
SETTINGS = {
    "backbone": "pixels",
    "image_size": 8,
    "clients_per_round": 2,
    "upload_dtype": "float64",
    "ridge_lambda": 1.0,
}
# A client that was killed is silent; it is asked again after that many seconds.
ROUND_TIMEOUT = 40.0


def node(number: Any) -> Any:
    return f"node-{number}", {"partition-id": number, "num-partitions": NUM_NODES}


@pytest.fixture(scope="module")
def federation(deploy: Any) -> Any:
    return deploy(dict(node(number) for number in range(NUM_NODES)))


@pytest.fixture(scope="module")
def undisturbed(federation: Any) -> Any:
    """The outcome of a run that nobody disturbs, and how long its ServerApp lives."""
    run = federation.submit("undisturbed", round_timeout=240.0, **SETTINGS)
    wait_until(lambda: federation.deployment.find(SERVER_APP))
    began = time.monotonic()
    outcome = federation.wait(run, "undisturbed")
    assert outcome.completed, outcome.output
    return outcome, time.monotonic() - began


def submit(federation: Any, name: str, **settings: Any) -> Any:
    settings = {**SETTINGS, "round_timeout": ROUND_TIMEOUT, **settings}
    return federation.submit(name, **settings)


def wait_until(condition: Any, seconds: float = 120.0) -> Any:
    """Return what a condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def kill(process: Any) -> None:
    with suppress(ProcessLookupError):  # it has just ended: a moment like any other
        os.kill(process, signal.SIGKILL)


def kill_server_app(deployment: Any, random: Any) -> None:
    for process in deployment.find(SERVER_APP):
        kill(process)


def kill_client_app(deployment: Any, random: Any) -> None:
    # Between two messages: take the next one.
    wait_until(lambda: deployment.find(CLIENT_APP) or not deployment.find(SERVER_APP))
    if running := deployment.find(CLIENT_APP):
        kill(int(random.choice(running)))


def kill_supernode(deployment: Any, random: Any) -> None:
    name, node_config = node(int(random.integers(NUM_NODES)))
    deployment.kill(name)
    time.sleep(random.uniform(0, 2))
    deployment.start_supernode(name, node_config)


def kill_superlink(deployment: Any, random: Any) -> None:
    deployment.kill(SUPERLINK)
    time.sleep(random.uniform(0, 2))
    deployment.start_superlink()


def finish(federation: Any, run: Any, name: str) -> Any:
    """Return the outcome of a run, resumed until it completes."""
    for _ in range(4):
        if federation.deployment.find(SERVER_APP):
            outcome = federation.wait(run, name)
            if outcome.completed:
                return outcome
        # Without a config.json the run had not begun: there is nothing to resume.
        began = (federation.directory(name) / "config.json").exists()
        run = submit(federation, name, resume=began)
        wait_until(lambda: federation.deployment.find(SERVER_APP))
    return federation.wait(run, name)


@pytest.mark.parametrize(
    ("strike", "seed"),
    [
        *((kill_server_app, seed) for seed in (1, 2, 3)),
        *((kill_client_app, seed) for seed in (4, 5, 6)),
        *((kill_supernode, seed) for seed in (7, 8)),
        *((kill_superlink, seed) for seed in (9, 10)),
    ],
)
def test_a_kill_does_not_change_the_result(
    federation: Any, undisturbed: Any, strike: Any, seed: int
) -> None:
    expected, seconds = undisturbed
    random, name = np.random.default_rng(seed), f"{strike.__name__}-{seed}"
    run = submit(federation, name)
    wait_until(lambda: federation.deployment.find(SERVER_APP))
    time.sleep(random.uniform(0, 0.9 * seconds))
    strike(federation.deployment, random)
    outcome = finish(federation, run, name)
    assert outcome.completed, outcome.output
    assert_same(outcome, expected)


def assert_same(outcome: Any, expected: Any) -> None:
    """Nobody is lost, nobody counted twice, and the classifier is the same."""
    assert outcome.summary["clients_counted"] == NUM_NODES
    assert outcome.summary["num_samples"] == NUM_IMAGES
    for one, other in (
        (outcome.statistics.A, expected.statistics.A),
        (outcome.statistics.b, expected.statistics.b),
        (outcome.weights, expected.weights),
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert main(["audit", str(outcome.directory)]) == 0
