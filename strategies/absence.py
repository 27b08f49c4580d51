"""Clients whose nodes are gone for a while: who is back in time is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from strategies.registry import ClientRegistry

# A node may be listed although Flower refuses its messages: not asked again at once.
_LONGEST_PAUSE, _PAUSE_SHARE = 5.0, 0.05
_LONGEST_POLL = 1.0


class Absence:
    """Since when nodes are gone, and waiting for them.

    Flower replies at once to whatever is sent to a node that is offline. Started again,
    it is online within a minute or two, with authentication as the same node.

    Parameters
    ----------
    registry : ClientRegistry
        The clients and their nodes.
    newcomers : callable
        Registers and returns clients that have come as another node, or for the first
        time.

    Attributes
    ----------
    timeout : float
        Seconds from a client's first absence after which it is no longer waited for.
    """

    def __init__(
        self,
        registry: ClientRegistry,
        newcomers: Callable[[], Iterable[str]] = tuple,
        timeout: float = 3600.0,
    ) -> None:
        self.timeout = timeout
        self._registry = registry
        self._newcomers = newcomers
        self._since: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def begin(self, client: str) -> None:
        """Record that the node of a client is gone."""
        if client not in self._since:
            log(WARNING, "The node of client %s is gone", client)
        self._last[client] = time.monotonic()
        self._since.setdefault(client, self._last[client])

    def end(self, client: str) -> None:
        """Record that a client has been heard."""
        self._since.pop(client, None)

    def is_over(self, client: str) -> bool:
        """Return whether a client has been gone for too long."""
        return time.monotonic() - self._since[client] >= self.timeout

    def present(
        self, grid: Grid, clients: Collection[str], *, wait_for_all: bool = False
    ) -> list[str]:
        """Return which of some clients can be asked, after waiting for one of them.

        Or for all. If another client comes meanwhile, there may be none.
        """
        was_said = False
        while True:
            away = self._away(grid, clients)
            here = [client for client in clients if client not in away]
            awaited = [client for client in away if not self.is_over(client)]
            if not awaited or (here and not wait_for_all):
                return here
            if not was_said:
                named = ", ".join(awaited[:10])
                log(INFO, "Waiting for the nodes of %s, which are gone", named)
                was_said = True
            time.sleep(min(_LONGEST_POLL, _PAUSE_SHARE * self.timeout))
            if {*self._newcomers()} - {*clients}:
                return here

    def _away(self, grid: Grid, clients: Collection[str]) -> list[str]:
        """Return which of some clients are gone, or were a moment ago."""
        gone = [client for client in clients if client in self._since]
        if not gone:
            return []
        connected, nodes = set(grid.get_node_ids()), self._registry.nodes
        pause = min(_LONGEST_PAUSE, _PAUSE_SHARE * self.timeout)
        recent = time.monotonic() - pause
        return [c for c in gone if nodes[c] not in connected or self._last[c] > recent]
