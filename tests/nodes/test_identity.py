"""Runs on nodes whose keys are registered by name: nobody answers for another."""

from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo

from fed3r_app.errors import RunError
from tests.harness.nodes import ALL, Federation


def register(grid: Any, names: Any) -> None:
    """Let Flower know the nodes of a grid by names."""
    for node, name in zip(sorted(grid.get_node_ids()), names, strict=True):
        grid.infos[node] = NodeInfo(node_id=node, name=name)


def test_an_impostor_is_not_counted_and_the_client_is(federation: Federation) -> None:
    grid = federation.make_grid(ALL, min_clients=4)
    federation.connect(999, federation.node_config(ALL[0]))
    register(grid, [*ALL, "impostor"])
    outcome = federation.run(grid=grid)
    federation.assert_pooled(outcome)
    (reason,) = outcome.summary["refused"].values()
    assert "registered under, 'impostor', got 'clinic-a'" in reason


def test_a_client_is_not_replaced_by_what_another_node_sends(
    federation: Federation,
) -> None:
    before = federation.run(ALL, keep_contributions=True).snapshot
    grid = federation.make_grid(
        ALL[:1], resume=True, replace=ALL[0], round_timeout=1.0, keep_contributions=True
    )
    register(grid, [ALL[1]])
    with pytest.raises(RunError, match="clinic-a must be connected, but is not"):
        federation.run(grid=grid)
    assert federation.run(ALL, resume=True).snapshot.contributions == (
        before.contributions
    )
