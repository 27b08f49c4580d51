"""TLS and node authentication, with the certificates of ``fed3r certificates``."""

import pytest

pytestmark = pytest.mark.slow


def digits(num_nodes):
    """Node configs that split the digits."""
    return {
        f"node-{k}": {"partition-id": k, "num-partitions": num_nodes}
        for k in range(num_nodes)
    }


def test_registered_nodes_run_encrypted_and_a_stranger_is_refused(deploy):
    federation = deploy(digits(2), secure=True, strangers=["stranger"])
    federation.deployment.start_supernode("stranger", {"partition-id": 2})
    outcome = federation.run(
        "secure",
        backbone="pixels",
        image_size=8,
        clients_per_round=0,
        upload_dtype="float64",
        ridge_lambda=1.0,
    )
    assert outcome.completed, outcome.output
    assert outcome.summary["clients_counted"] == 2
    assert federation.deployment.exit_code("stranger", timeout=30) != 0
    assert "SuperNode ID" not in federation.deployment.log("stranger")
