"""With node authentication, a node is the client that its key is registered as."""

from functools import partial
from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo

from fed3r_app.errors import RunError
from strategies import ClientDiscovery, NodeNames
from tests.harness.grid import SpyGrid
from tests.harness.replies import say_hello

LONG_AGO, NOW = "2026-01-01T08:00:00+00:00", "2026-01-02T08:00:00+00:00"


def meet(nodes: Any, strict: Any = True, **known: Any) -> Any:
    """Return who is registered of nodes, given as (name of the key, client-id)."""
    says = {node: client for node, (_, client) in nodes.items()}
    grid = SpyGrid({node: partial(say_hello, client=says[node]) for node in nodes})
    grid.infos = {
        node: NodeInfo(node_id=node, name=name, **known)
        for node, (name, _) in nodes.items()
    }
    discovery = ClientDiscovery(grid, timeout=5, strict=strict, names=NodeNames())
    discovery.gather(0)
    return discovery.registry


def test_nodes_under_their_names_take_part() -> None:
    assert meet({1: ("a", "a"), 2: ("b", "b")}).nodes == {"a": 1, "b": 2}


def test_a_node_is_not_another_client_and_can_not_drive_it_out() -> None:
    registry = meet({1: ("a", "a"), 2: ("b", "a")}, strict=False)
    assert registry.nodes == {"a": 1}
    (reason,) = registry.refused.values()
    assert "the node's key is registered under, 'b', got 'a'" in reason
    assert "fed3r register HOST:PORT KEY.pub --name a" in reason


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_impostor_ends_a_strict_run_whoever_comes_first(order: Any) -> None:
    honest, impostor = order
    with pytest.raises(RunError, match="client-id must be the name"):
        meet({honest: ("a", "a"), impostor: ("b", "a")})


def test_a_key_without_a_name_is_refused_beside_named_ones() -> None:
    with pytest.raises(RunError, match=r"client 'b' must have a key .* without a name"):
        meet({1: ("a", "a"), 2: ("", "b")})


def test_and_where_it_was_registered_long_before_it_connected() -> None:
    times = {"registered_at": LONG_AGO, "last_activated_at": NOW}
    with pytest.raises(RunError, match="without a name"):
        meet({1: ("", "a")}, **times)


def test_without_authentication_nodes_have_no_names() -> None:
    times = {"registered_at": NOW, "last_activated_at": NOW}
    assert meet({1: ("", "a"), 2: ("", "b")}, **times).nodes == {"a": 1, "b": 2}


def test_a_name_of_two_keys_is_refused() -> None:
    with pytest.raises(RunError, match="'a' must belong to one key"):
        meet({1: ("a", "a"), 2: ("a", "b"), 3: ("c", "c")})
