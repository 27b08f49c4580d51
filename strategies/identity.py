"""Whose a node is: with node authentication, its registered name is its client's id.

Flower knows each node by its key, and has the name that the key was registered under
(``fed3r register --name``). Nothing else says who a node is: its client-id is a claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from flwr.proto.node_pb2 import NodeInfo

# Without node authentication a node registers itself as it connects, which takes
# moments. A key that was there for so long before has been registered by somebody.
_SELF_REGISTRATION = timedelta(minutes=1)
_REGISTER = "fed3r register HOST:PORT KEY.pub --name {}"


class NodeNames:
    """The names that the keys of nodes are registered under."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeInfo] = {}
        self._holders: dict[str, set[int]] = {}  # connected nodes, by name

    def update(self, connected: Iterable[NodeInfo]) -> set[int]:
        """Take in the nodes that are connected now; return their ids."""
        holders, ids = defaultdict(set), set()
        for node in connected:
            self._nodes[node.node_id] = node
            ids.add(node.node_id)
            if node.name:
                holders[node.name].add(node.node_id)
        self._holders = dict(holders)
        return ids

    def refusal(self, node_id: int, client: str) -> str | None:
        """Return why a node may not take part as a client, None if it may."""
        node = self._nodes.get(node_id, NodeInfo())
        if not node.name:
            if not self._are_authenticated:
                return None
            return (
                f"The node of client {client!r} must have a key that is registered "
                "under that name, got one without a name. Make a new key for it, and "
                f"register that: {_REGISTER.format(client)}."
            )
        if len(self._holders.get(node.name, ())) > 1:
            return (
                f"The name {node.name!r} must belong to one key, got two connected "
                "nodes that are registered under it. Unregister one of them, and "
                f"register a new key for it: {_REGISTER.format('ANOTHER')}."
            )
        if node.name != client:
            return (
                f"client-id must be the name that the node's key is registered under, "
                f"{node.name!r}, got {client!r}. Start that node with --client-id "
                f"{node.name}, or make a new key for it and register that: "
                f"{_REGISTER.format(client)}."
            )
        return None

    @property
    def _are_authenticated(self) -> bool:
        """Whether a key has been registered by somebody, as far as can be seen."""
        return any(
            node.name or _was_known_before(node) for node in self._nodes.values()
        )


def _was_known_before(node: NodeInfo) -> bool:
    """Return whether the key of a node was there long before the node."""
    if not node.registered_at or not node.last_activated_at:
        return False
    times = (node.registered_at, node.last_activated_at)
    registered, activated = map(datetime.fromisoformat, times)
    return activated - registered > _SELF_REGISTRATION
