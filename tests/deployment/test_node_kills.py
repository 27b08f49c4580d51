"""Nodes of ``fed3r node`` with TLS and node authentication, killed, frozen, refused."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.deployment.demo_data import write_demo_data
from fed3r_app.runs.ledger import ACCEPTED
from tests.deployment.test_kills import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES = ("clinic-1", "clinic-2", "clinic-3")
SETTINGS = {
    "dataset": "local",
    "backbone": "pixels",
    "image_size": 8,
    "upload_dtype": "float64",
    "ridge_lambda": 1.0,
    "wait_for": 3,
    "max_retries": 0,  # what Flower says of a node that is offline uses up none
    "round_timeout": 240.0,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("images")
    write_demo_data(folder, NODES)
    return folder


@pytest.fixture(scope="module")
def federation(deploy: Any, images: Path) -> Any:
    made = deploy({}, secure=True, strangers=[*NODES, "stranger"])
    for name in NODES:
        made.deployment.register(name)
        made.deployment.start_node(name, images / name)
    return made


def kill_and_start_again(deployment: Any, name: str, data: Path) -> None:
    deployment.kill(name)
    deployment.start_node(name, data)


def freeze(deployment: Any, name: str, data: Path) -> None:
    """Stop all processes of a node for longer than Flower takes it for online."""
    group = next(
        os.getpgid(int(path.name))
        for path in Path("/proc").glob("[0-9]*")
        if parent_of(path) == deployment.process(name)
    )
    os.killpg(group, signal.SIGSTOP)
    try:
        time.sleep(75)
    finally:
        os.killpg(group, signal.SIGCONT)


def times_asked(federation: Any, name: str) -> int:
    """Return how often a node has been asked for its statistics."""
    return int(federation.deployment.log(name).count("Receiving: train.statistics"))


def parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@pytest.mark.parametrize("strike", [kill_and_start_again, freeze])
def test_a_node_that_fails_amid_a_run_is_counted_once(
    federation: Any, images: Path, strike: Callable[[Any, str, Path], None]
) -> None:
    name, victim = strike.__name__, NODES[2]
    asked = times_asked(federation, victim)
    run = federation.submit(name, **SETTINGS)
    wait_until(lambda: times_asked(federation, victim) > asked, 240.0)
    strike(federation.deployment, victim, images / victim)
    outcome = federation.wait(run, name, timeout=480.0)
    assert outcome.completed, outcome.output
    accepted = [each.client for each in outcome.ledger if each.outcome == ACCEPTED]
    assert sorted(accepted) == sorted(NODES)
    assert outcome.summary["clients_counted"] == 3
    assert outcome.summary["num_samples"] == 1442
    assert outcome.summary["client_test_images"] == 355
    assert outcome.summary["not_evaluated"] == []
    if strike is kill_and_start_again:
        said = federation.deployment.log(victim)
        assert "Its key is known, but passes for online: clinic-3 was killed" in said


def test_a_stranger_ends_with_a_sentence_and_leaves_no_process(
    federation: Any, images: Path
) -> None:
    federation.deployment.start_node("stranger", images / NODES[0])
    assert federation.deployment.exit_code("stranger", timeout=60) == 1
    assert "does not know the key" in federation.deployment.log("stranger")
