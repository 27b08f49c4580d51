"""What a SuperLink knows of its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fed3r_app.deployment.superlink import SuperLink


@dataclass(frozen=True)
class KnownNode:
    """A node that has connected, or whose key is registered.

    ``name`` is that of ``flwr supernode register --name``; empty without one.
    """

    name: str
    status: str  # registered, online, offline or unregistered
    public_key: bytes  # PEM

    @property
    def is_online(self) -> bool:
        """Whether it has been heard within two of its heartbeats."""
        return self.status == "online"


def list_nodes(superlink: SuperLink) -> list[KnownNode]:
    """Return the nodes that a SuperLink knows."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with superlink.control() as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return [KnownNode(node.name, node.status, node.public_key) for node in nodes]
