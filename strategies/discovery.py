"""Which clients take part: the first exchange, which finds the client of each node.

Node ids are random for each run. A client's own id is what a seed, a snapshot and a
person can hold on to.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import FeatureMoments
from fed3r_app.errors import RunError
from fed3r_app.wire import Hello, RecordError, count_bytes, read_hello
from strategies.messaging import IN_FLIGHT, stream_replies

HELLO = "query.hello"


@dataclass
class ClientRegistry:
    """The clients of a run, in the order of their ids.

    Attributes
    ----------
    nodes : dict
        The node of each client.
    class_names : dict
        The classes that each client whose images are its own has announced.
    num_test_images : dict
        How many test images such a client holds.
    refused : dict
        Why a client, or a node whose client is not known, does not take part.
    num_partitions : int
        Into how many parts the clients' one data set is split; 0 where each has its
        own images.
    moments : FeatureMoments or None
        The sum of the clients' feature moments.
    upload_bytes, download_bytes : int
        What the first exchange has cost.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    num_test_images: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    num_partitions: int = 0
    moments: FeatureMoments | None = None
    upload_bytes: int = 0
    download_bytes: int = 0

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids, sorted: numbers by value, other names after them."""
        return tuple(self.nodes)

    @property
    def in_flight(self) -> int:
        """How many clients may be asked at the same time; real nodes all of them."""
        # Parts of one data set are simulated, as a rule: many share a machine.
        return IN_FLIGHT if self.num_partitions else max(len(self.nodes), IN_FLIGHT)

    def client_of(self, node: int) -> str | None:
        """Return the client of a node.

        Linear in the number of clients: do not call per message.
        """
        return next((c for c, known in self.nodes.items() if known == node), None)

    def add(self, node: int, hello: Hello) -> None:
        """Register a client and its node; its moments are added once."""
        client = hello.client_id
        if hello.moments is not None and client not in self.nodes:
            known = self.moments
            self.moments = hello.moments if known is None else known + hello.moments
        self.nodes[client] = node
        self.class_names[client] = hello.class_names
        self.num_test_images[client] = hello.num_test_images
        self.num_partitions = self.num_partitions or hello.num_partitions

    def refuse(self, client: str, reason: str) -> None:
        """Leave a client out."""
        log(WARNING, "Left out: %s: %s", client, reason)
        self.refused[client] = reason
        self.nodes.pop(client, None)

    def leave_out(self, clients: Collection[str]) -> None:
        """Take out clients that are not to be asked."""
        for client in clients:
            self.nodes.pop(client, None)
            self.class_names.pop(client, None)

    def sort(self) -> None:
        """Put the clients in order, whatever the order they came in."""
        order = sorted(self.nodes.items(), key=lambda item: natural_key(item[0]))
        self.nodes = dict(order)


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
    progress : callable
        Called with the number of clients found and expected.

    Attributes
    ----------
    registry : ClientRegistry
        All clients found so far.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timeout: float,
        max_retries: int = 0,
        strict: bool = True,
        in_flight: int = IN_FLIGHT,
        progress: Callable[[int, int], None] = lambda found, expected: None,
    ) -> None:
        self.registry = ClientRegistry()
        self._grid = grid
        self._timeout = timeout
        self._max_retries = max_retries
        self._strict = strict
        self._in_flight = in_flight
        self._progress = progress
        self._asked: set[int] = set()
        self._awaited: set[int] = set()
        self._failures: Counter[int] = Counter()
        # A second node under a client's name, until it is known if the first is gone.
        self._rivals: dict[str, tuple[int, Hello]] = {}

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

        def enough() -> bool:
            if self._strict and registry.refused:
                return True
            heard = len(registry.nodes) + len(registry.refused)
            return 0 < heard >= expected and self._settled

        for node, hello in self._hellos(enough, with_moments):
            expected = expected or hello.num_partitions
            self._register(node, hello)
            self._progress(len(registry.nodes), expected)
        heard = len(registry.nodes) + len(registry.refused)
        if not 0 < heard >= expected and not (self._strict and registry.refused):
            raise RunError(self._shortfall(expected))
        self._refuse_silent()
        if self._strict and registry.refused:
            raise RunError(next(iter(registry.refused.values())))
        registry.sort()

    def admit_newcomers(self) -> list[str]:
        """Return the clients that have come since, or have come back as another node.

        Whoever can't take part is left out with a warning.
        """
        before = dict(self.registry.nodes)
        for node, hello in self._hellos(lambda: self._settled):
            self._register(node, hello)
        self._refuse_silent()
        self.registry.sort()
        return [c for c, node in self.registry.nodes.items() if before.get(c) != node]

    @property
    def _settled(self) -> bool:
        return not self._awaited and not self._rivals

    def _hellos(
        self, enough: Callable[[], bool], with_moments: bool = False
    ) -> Iterator[tuple[int, Hello]]:
        """Yield who says hello, and note who can't, until it is enough."""
        greetings = self._hello_requests(enough, with_moments)
        for reply in stream_replies(
            self._grid, greetings, timeout=self._timeout, in_flight=self._in_flight
        ):
            node = reply.metadata.src_node_id
            self._awaited.discard(node)
            if reply.has_error():
                self._record_failure(node, reply.error.reason)
                continue
            self.registry.upload_bytes += count_bytes(reply.content)
            try:
                yield node, read_hello(reply.content)
            except RecordError as error:
                self._record_failure(node, str(error))

    def _hello_requests(
        self, enough: Callable[[], bool], with_moments: bool
    ) -> Iterator[Message | None]:
        """Yield a request for every new node, None while there is none."""
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            connected = set(self._grid.get_node_ids())
            self._awaited &= connected
            self._replace_gone(connected)
            new = connected - self._asked
            for node in sorted(new):
                yield self._request_hello(node, with_moments)
            if not new and enough():
                return
            yield None

    def _request_hello(self, node: int, with_moments: bool) -> Message:
        self._asked.add(node)
        self._awaited.add(node)
        content = RecordDict({"config": ConfigRecord({"moments": with_moments})})
        self.registry.download_bytes += count_bytes(content)
        return Message(content, dst_node_id=node, message_type=HELLO)

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

    def _replace_gone(self, connected: set[int]) -> None:
        """Let a node that was started anew stand for its client."""
        for client, rival in list(self._rivals.items()):
            if self.registry.nodes[client] not in connected:
                del self._rivals[client]
                self.registry.add(*rival)

    def _record_failure(self, node: int, reason: str | None) -> None:
        for client in list(self._rivals):
            if self.registry.nodes[client] == node:
                self.registry.add(*self._rivals.pop(client))
                return
        self._failures[node] += 1
        if self._failures[node] > self._max_retries:
            sentence = f"A client failed in the first exchange: {reason}"
            self.registry.refuse(f"node {node}", sentence)
        else:
            self._asked.discard(node)

    def _refuse_silent(self) -> None:
        for node in self._awaited:
            sentence = f"Node {node} did not say hello within {self._timeout:g} s."
            self.registry.refuse(f"node {node}", sentence)
        self._awaited = set()

    def _shortfall(self, expected: int) -> str:
        wanted = str(expected) if expected else "any"
        return (
            f"Only {len(self.registry.nodes)} of {wanted} expected clients connected "
            f"within {self._timeout:g} s. Start the missing nodes, or lower wait-for."
        )


def natural_key(client: str) -> tuple[bool, int, str]:
    """Return a sort key: "2" before "10", names after numbers."""
    return (not client.isdecimal(), int(client) if client.isdecimal() else 0, client)
