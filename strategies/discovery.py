"""Which clients take part: the first exchange, which finds the client of each node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.console.progress import Progress
from fed3r_app.errors import RunError
from fed3r_app.wire import Hello, ParityCheck, RecordError, count_bytes, read_hello
from fed3r_app.wire.versions import CODE_VERSION, agree
from fed3r_app.words import first_names
from strategies.identity import NodeNames
from strategies.messaging import (
    IN_FLIGHT,
    EveryMinute,
    is_permanent,
    is_unavailable,
    one_line,
    same_request,
    stream_replies,
)
from strategies.registry import ClientRegistry, natural_key

HELLO = "query.hello"


@dataclass(eq=False)
class ClientDiscovery:
    """Says hello to the nodes a run begins with, and to those that come later.

    Parameters
    ----------
    grid : Grid
        Where the nodes connect.
    timeout : float
        Seconds to wait for the clients.
    max_retries : int
        How often a node that failed is asked again.
    strict : bool
        Whether a node that can't take part ends the run before it begins.
    in_flight : int
        How many nodes may be asked at the same time.
    request : ConfigRecord
        What a request says besides: how images are read.
    parity : ParityCheck or None
        Refuses clients whose moments are of other features than the server's.
    dim : int or None
        Of how many features moments must be.
    must_announce : bool
        Whether a client must say how many samples it has.
    names : NodeNames or None
        Refuses clients whose nodes are not theirs, where nodes have their own images.

    Attributes
    ----------
    registry : ClientRegistry
        All clients found so far.
    """

    grid: Grid
    timeout: float
    max_retries: int = 0
    strict: bool = True
    in_flight: int = IN_FLIGHT
    request: ConfigRecord = field(default_factory=ConfigRecord)
    parity: ParityCheck | None = None
    dim: int | None = None
    must_announce: bool = False
    names: NodeNames | None = None
    registry: ClientRegistry = field(default_factory=ClientRegistry, init=False)
    _asked: set[int] = field(default_factory=set, init=False)
    _awaited: set[int] = field(default_factory=set, init=False)
    _failures: Counter[int] = field(default_factory=Counter, init=False)
    _warned_of: set[str] = field(default_factory=set, init=False)
    # A second node under a client's name, until it is known if the first is gone.
    _rivals: dict[str, tuple[int, Hello]] = field(default_factory=dict, init=False)

    def gather(self, wait_for: int, with_moments: bool = False) -> None:
        """Wait for the clients that the run begins with.

        Parameters
        ----------
        wait_for : int
            Number of clients to expect; 0 takes what the clients say,
            ``num-partitions``, and where they can't know, all that are connected.
        with_moments : bool
            Also ask for the moments from which the kernel width is chosen.
        """
        registry, expected = self.registry, wait_for

        def heard_all() -> bool:
            return 0 < len(registry.nodes) + len(registry.refused) >= expected

        def must_end() -> bool:
            return self.strict and bool(registry.refused)

        minute = EveryMinute()

        def enough() -> bool:
            if minute.is_due():
                there = f"{len(registry.nodes)} of {expected or 'any'}"
                log(INFO, "Waiting for the clients: %s connected", there)
            return must_end() or (heard_all() and self._settled)

        with Progress("clients connected") as progress:
            for node, hello in self._hellos(enough, with_moments):
                expected = expected or hello.num_partitions
                self._register(node, hello)
                progress(len(registry.nodes), expected or len(registry.nodes))
        if not heard_all() and not must_end():
            raise RunError(
                f"Only {len(registry.nodes)} of {expected or 'any'} expected clients "
                f"connected within {self.timeout:g} s: "
                f"{first_names(registry.clients, 10) or 'none'}. Start the missing "
                "nodes, or lower wait-for. fed3r clients lists all that are registered."
            )
        self._end_exchange()
        if must_end():
            raise RunError(next(iter(registry.refused.values())))

    def admit_newcomers(self) -> list[str]:
        """Return the clients that have come since, or have come back as another node.

        Those that can't take part are left out with a warning.
        """
        before = dict(self.registry.nodes)
        for node, hello in self._hellos(lambda: self._settled):
            self._register(node, hello)
        self._end_exchange()
        return [c for c, node in self.registry.nodes.items() if before.get(c) != node]

    @property
    def _settled(self) -> bool:
        return not self._awaited and not self._rivals

    def _hellos(
        self, enough: Callable[[], bool], with_moments: bool = False
    ) -> Iterator[tuple[int, Hello]]:
        """Yield the nodes that say hello, and record failures, until it is enough."""
        requests = self._requests(enough, with_moments)
        for reply in stream_replies(
            self.grid, requests, timeout=self.timeout, in_flight=self.in_flight
        ):
            node = reply.metadata.src_node_id
            self._awaited.discard(node)
            if is_unavailable(reply) and node not in set(self.grid.get_node_ids()):
                self._replace_first([node])
                self._asked.discard(node)  # until it is back
                continue
            if reply.has_error():
                reason, permanent = reply.error.reason, is_permanent(reply)
                self._record_failure(node, reason, permanent=permanent)
                continue
            self.registry.traffic.up += count_bytes(reply.content)
            try:
                hello = read_hello(reply.content, self.dim)
                if self.must_announce and hello.num_samples is None:
                    raise RecordError("num-samples must be there, got none.")
            except RecordError as error:
                self._record_failure(node, str(error))
                continue
            # First: what follows may refuse the client that it says it is.
            if self.names and (refusal := self.names.refusal(node, hello.client_id)):
                self.registry.refuse(f"node {node}", refusal)
            elif self._has_our_version(hello) and self._sees_the_same(hello):
                yield node, hello

    def _requests(
        self, enough: Callable[[], bool], with_moments: bool
    ) -> Iterator[Message | None]:
        """Yield a request for every new node, None while there is none."""
        request = {**dict(self.request.items()), "moments": with_moments}
        content = RecordDict({"config": ConfigRecord(request)})
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            connected = self._connected()
            self._awaited &= connected
            self._replace_first({*self.registry.nodes.values()} - connected)
            new = connected - self._asked
            for node in sorted(new):
                self._asked.add(node)
                self._awaited.add(node)
                yield from same_request([node], content, HELLO, self.registry.traffic)
            if not new and enough():
                return
            yield None

    def _connected(self) -> set[int]:
        """Return the nodes that are connected."""
        if self.names is None:
            return set(self.grid.get_node_ids())
        return self.names.update(self.grid.get_nodes())

    def _register(self, node: int, hello: Hello) -> None:
        """Take a client in, unless another node has its name or it splits otherwise."""
        client, parts = hello.client_id, self.registry.num_partitions
        if parts and hello.num_partitions != parts:
            self.registry.refuse(
                f"node {node}",
                f"num-partitions must be {parts} as at the other nodes, got "
                f"{hello.num_partitions} from client {client}: parts would overlap.",
            )
            return
        known = self.registry.nodes.get(client, node)
        if known == node:
            self.registry.add(node, hello)
            if self._rivals.pop(client, None):  # both answer
                self.registry.refuse(
                    f"a second {client}",
                    f"client-id must be unique, got {client!r} from two nodes.",
                )
        else:  # started anew, perhaps: is the first still there?
            self._rivals[client] = (node, hello)
            self._asked.discard(known)

    def _replace_first(self, gone: Collection[int]) -> bool:
        """Let nodes that were started anew stand for their clients; return if any."""
        clients = [c for c in self._rivals if self.registry.nodes[c] in gone]
        for client in clients:
            self.registry.add(*self._rivals.pop(client))
        return bool(clients)

    def _sees_the_same(self, hello: Hello) -> bool:
        """Return whether a client that sent moments sees as the server does."""
        try:
            if self.parity and hello.moments is not None:
                self.parity.check(hello.parity)
        except RecordError as error:
            client = hello.client_id
            self.registry.refuse(client, f"Client {client}: {error}")
            return False
        return True

    def _has_our_version(self, hello: Hello) -> bool:
        """Return whether a client's records are those of this version.

        Its code comes with the run, unless its node runs code of its own. What else is
        installed there is said where it is of another version, once for each.
        """
        client, installed = hello.client_id, hello.installed_version
        if not agree(hello.code_version, CODE_VERSION):
            sentence = (
                f"Client {client} must run fed3r {CODE_VERSION}, as the server does, "
                f"got {hello.code_version}: their records differ. Update its node."
            )
            self.registry.refuse(client, sentence)
            return False
        if not agree(installed, CODE_VERSION) and installed not in self._warned_of:
            self._warned_of.add(installed)
            text = (
                "Client %s has fed3r %s installed, and its libraries; the run brings "
                "%s. Update its node to be sure that both compute alike."
            )
            log(WARNING, text, client, installed, CODE_VERSION)
        return True

    def _record_failure(
        self, node: int, reason: str | None, *, permanent: bool = False
    ) -> None:
        if self._replace_first([node]):
            return
        self._failures[node] += 1
        if permanent or self._failures[node] > self.max_retries:
            sentence = f"A client failed in the first exchange: {one_line(reason)}"
            self.registry.refuse(f"node {node}", sentence)
        else:
            self._asked.discard(node)

    def _end_exchange(self) -> None:
        """Refuse the nodes that kept silent; put the clients in order."""
        for node in self._awaited:
            sentence = f"Node {node} did not say hello within {self.timeout:g} s."
            self.registry.refuse(f"node {node}", sentence)
        self._awaited = set()
        nodes = self.registry.nodes
        self.registry.nodes = {c: nodes[c] for c in sorted(nodes, key=natural_key)}
