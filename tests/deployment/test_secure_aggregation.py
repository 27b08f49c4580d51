"""Secure aggregation over four real SuperNodes, one of them killed half-way."""

import time
from typing import Any

import pytest
import torch

from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.secagg import FixedPointEncoding

# A run is five exchanges, each of which starts a process per node.
_LONGEST = 900.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * _LONGEST)]

SIZE, LAM, CLIENTS = 8, 0.5, 4
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
    grid = FixedPointEncoding(FeatureMap(SIZE * SIZE), 1.0, 1_000_000)
    dataset = load_dataset("digits", "")
    backbone = load_backbone(BackboneSpec("pixels", "packaged", SIZE))
    rows = split_rows(dataset, "iid", CLIENTS, 0.1, 0)
    total = RidgeStatistics.zeros(SIZE * SIZE, 10)
    for client in clients:
        Z = extract_features(
            backbone, dataset.train, rows[client], device=torch.device("cpu")
        )
        y = torch.from_numpy(dataset.train.labels[rows[client]])
        total = total + RidgeStatistics.of(grid.round(Z), y, 10)
    assert torch.equal(outcome.statistics.A, total.A)
    assert torch.equal(outcome.statistics.b, total.b)
    assert torch.equal(outcome.statistics.counts, total.counts)
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
    assert "Client 2 failed" in outcome.output
    assert_plain(outcome, [0, 1, 3])
