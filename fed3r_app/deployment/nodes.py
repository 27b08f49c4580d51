"""What a SuperLink knows of its nodes, and how they become known to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fed3r_app.deployment.superlink import SuperLink
from fed3r_app.errors import RunError, RunStopped
from fed3r_app.words import first_names

ONLINE, OFFLINE = "online", "offline"
REGISTERED, UNREGISTERED = "registered", "unregistered"


@dataclass(frozen=True)
class KnownNode:
    """A node that has connected, or whose key is registered.

    Parameters
    ----------
    name : str
        That of the registration; empty without one.
    status : str
        ``registered`` (it has never connected), ``online``, ``offline`` or
        ``unregistered``.
    public_key : bytes
        As PEM.
    since : datetime or None
        Since when it has that status.
    """

    name: str
    status: str
    public_key: bytes
    since: datetime | None = None

    @property
    def state(self) -> str:
        """Its status and since when, in words."""
        status = "never seen, registered" if self.status == REGISTERED else self.status
        since = f" since {self.since.astimezone():%Y-%m-%d %H:%M}" if self.since else ""
        return status + since

    @property
    def is_online(self) -> bool:
        """Whether it has been heard within two of its heartbeats."""
        return self.status == ONLINE


def list_nodes(superlink: SuperLink) -> list[KnownNode]:
    """Return the nodes that a SuperLink knows."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with superlink.control() as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return [
        KnownNode(node.name, node.status, node.public_key, _since(node))
        for node in nodes
    ]


def _since(node: Any) -> datetime | None:
    """Return since when a node has its status."""
    time = {
        ONLINE: node.last_activated_at,
        OFFLINE: node.last_deactivated_at,
        REGISTERED: node.registered_at,
        UNREGISTERED: node.unregistered_at,
    }.get(node.status)
    return datetime.fromisoformat(time) if time else None


@contextmanager
def naming_absent(superlink: SuperLink) -> Iterator[None]:
    """Let the error of a run that lacks clients name the nodes that are not online.

    Those that are registered by name: its ServerApp knows only who is connected.
    """
    try:
        yield
    except RunStopped:
        raise
    except RunError as error:
        if "client" not in str(error):
            raise
        try:
            nodes = sorted(list_nodes(superlink), key=lambda node: node.name)
        except OSError:
            raise error from None
        absent = [
            f"{node.name} ({node.state})"
            for node in nodes
            if node.name and node.status in (OFFLINE, REGISTERED)
        ]
        if not absent:
            raise
        named = first_names(absent, 10)
        raise RunError(f"Not online: {named}. {error}") from error


def find_node(superlink: SuperLink, public_key: bytes) -> KnownNode | None:
    """Return the node with a key (PEM), if the SuperLink knows it."""
    known = (n for n in list_nodes(superlink) if n.public_key == public_key)
    return next(known, None)


def register_node(superlink: SuperLink, public_key: Path, name: str) -> bool:
    """Let the node with a key connect under a name; return False if it may already.

    A run takes the name for the client's id: it belongs to one key.
    """
    key, known = read_public_key(public_key), list_nodes(superlink)
    nodes = [node for node in known if node.public_key == key]
    if any(node.status == UNREGISTERED for node in nodes):
        raise RunError(
            f"{public_key} must be a key that was never unregistered, got one that "
            "was, and Flower never lets it in again. Make a new key for the node."
        )
    for node in nodes:
        if node.name != name:
            raise RunError(
                f"{public_key} must keep the name it was registered under, "
                f"{node.name!r}, got {name!r}. Flower can't rename a node: take that "
                "name as its client-id, or make a new key."
            )
        return False
    if any(node.name == name and node.status != UNREGISTERED for node in known):
        raise RunError(
            f"--name must belong to one key, got {name!r}, which another one has. "
            "Unregister that first (flwr supernode unregister), or choose another name."
        )
    from flwr.proto.control_pb2 import RegisterNodeRequest

    with superlink.control() as control:
        control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
    return True


def read_public_key(path: Path) -> bytes:
    """Return the public key in a file of OpenSSH's as PEM, as Flower keeps it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must be a node's public key, got no file there."
        )
    try:
        key: Any = load_ssh_public_key(path.read_bytes())
        return public_key_to_bytes(key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{path} must be a node's public key, as ssh-keygen -t ecdsa -b 384 writes "
            f"to a file ending in .pub, got: {error}."
        ) from error


def public_key_of(private_key: Path) -> bytes:
    """Return the public half of the private key in a file of OpenSSH's, as PEM."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    if not private_key.is_file():
        raise FileNotFoundError(
            f"--key must be the node's private key, got no file at {private_key}."
        )
    try:
        key: Any = load_ssh_private_key(private_key.read_bytes(), None)
        return public_key_to_bytes(key.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(
            "--key must be a private key without a passphrase, as ssh-keygen -t ecdsa "
            f'-b 384 -N "" writes it, got {private_key}: {error}.'
        ) from error
