"""Secure aggregation over four real SuperNodes, one of them killed half-way."""

import time
from typing import Any

import pytest
import torch

from fed3r_app.core import solve_ridge
from tests.harness.pixels import (
    LAM,
    SIZE,
    assert_same_statistics,
    rounded_statistics,
)

# A run is five exchanges, each of which starts a process per node.
_LONGEST = 900.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * _LONGEST)]

CLIENTS = 4
SETTINGS = {
    "backbone": "pixels",
    "image_size": SIZE,
    "partition": "iid",
    "ridge_lambda": LAM,
    "privacy": "secagg",
    "max_retries": 0,
    "min_clients": 3,
}


@pytest.fixture(scope="module")
def federation(deploy: Any) -> Any:
    return deploy(
        {
            f"node-{i}": {"partition-id": i, "num-partitions": CLIENTS}
            for i in range(CLIENTS)
        }
    )


def assert_plain(outcome: Any, clients: Any) -> None:
    """Check that the sums of some clients and W are the plain ones, to the bit."""
    total = rounded_statistics(clients, CLIENTS)
    assert_same_statistics(outcome.statistics, total)
    torch.set_num_threads(1)  # as in the deployment
    assert torch.equal(outcome.weights, solve_ridge(total, LAM))


def test_four_supernodes_give_the_plain_classifier_bit_for_bit(federation: Any) -> None:
    outcome = federation.run("whole", _LONGEST, **SETTINGS)
    assert outcome.completed, outcome.output
    assert outcome.summary["clients_counted"] == CLIENTS
    assert_plain(outcome, range(CLIENTS))


def wait_for_share(deployment: Any, node: Any, start: Any) -> None:
    """Wait until a node's log says, from ``start`` on, that its shares are sent."""
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        _, asked, after = deployment.log(node)[start:].partition("Sending: query.share")
        if asked and "Sent successfully" in after:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{node} did not share its keys.")


def test_a_supernode_killed_after_sharing_its_keys_is_made_up_for(
    federation: Any,
) -> None:
    deployment = federation.deployment
    start = len(deployment.log("node-2"))
    run = federation.submit("killed", **SETTINGS)
    wait_for_share(deployment, "node-2", start)
    deployment.kill("node-2")
    outcome = federation.wait(run, "killed", _LONGEST)
    assert outcome.completed, outcome.output
    assert outcome.summary["missing_clients"] == ["2"]
    assert "The node of client 2 is gone" in outcome.output
    assert_plain(outcome, [0, 1, 3])
