"""Who takes part: the first exchange, which tells clients from nodes.

Node ids are random for each run. A client's own id is what a seed, a snapshot and a
person can hold on to.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fed3r_app.core import FeatureMoments
from fed3r_app.run_errors import RunError
from fed3r_app.wire import count_bytes, read_hello
from strategies.exchange import exchange

HELLO = "query.hello"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Roster:
    """The clients of a run, in the order of their ids, and their nodes."""

    nodes: dict[str, int]
    moments: FeatureMoments | None
    upload_bytes: int
    download_bytes: int

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids, sorted: numbers by value, other names after them."""
        return tuple(self.nodes)

    def without(self, clients: Collection[str]) -> Roster:
        """Return the roster without some clients, who are not to be asked."""
        nodes = {
            client: node for client, node in self.nodes.items() if client not in clients
        }
        return replace(self, nodes=nodes)


def meet_clients(
    grid: Grid,
    *,
    wait_for: int,
    timeout: float,
    max_retries: int = 0,
    with_moments: bool = False,
    progress: Callable[[int, int], None] = lambda met, expected: None,
) -> Roster:
    """Return everybody who takes part, once all that are expected have answered.

    Parameters
    ----------
    grid : Grid
        Where the nodes connect.
    wait_for : int
        Number of clients to expect; 0 takes what the clients say, ``num-partitions``.
    timeout : float
        Seconds to wait for them.
    max_retries : int
        How often a node that failed is asked again.
    with_moments : bool
        Also ask for the sums from which the kernel width is chosen.
    progress : callable
        Called with the number of clients met and expected.
    """
    meeting = _Meeting(wait_for, max_retries)
    deadline = time.monotonic() + timeout
    while not meeting.complete:
        if time.monotonic() > deadline:
            raise RunError(meeting.shortfall(timeout))
        new = [node for node in grid.get_node_ids() if node not in meeting.asked]
        if not new:
            time.sleep(_POLL_SECONDS)
        messages = meeting.greet(new, with_moments)
        for reply in exchange(grid, messages, timeout=deadline - time.monotonic()):
            meeting.hear(reply)
            progress(len(meeting.nodes), meeting.expected)
    return meeting.roster()


class _Meeting:
    """The state of the first exchange."""

    def __init__(self, wait_for: int, max_retries: int) -> None:
        self.expected = wait_for
        self.asked: set[int] = set()
        self.nodes: dict[str, int] = {}
        self._max_retries = max_retries
        self._failures: Counter[int] = Counter()
        self._moments: FeatureMoments | None = None
        self._upload_bytes = 0
        self._download_bytes = 0

    @property
    def complete(self) -> bool:
        return bool(self.nodes) and len(self.nodes) >= self.expected

    def greet(self, nodes: Iterable[int], with_moments: bool) -> Iterator[Message]:
        for node in nodes:
            self.asked.add(node)
            content = RecordDict({"config": ConfigRecord({"moments": with_moments})})
            self._download_bytes += count_bytes(content)
            yield Message(content, dst_node_id=node, message_type=HELLO)

    def hear(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._note_failure(node, reply.error.reason)
            return
        hello = read_hello(reply.content)
        self._upload_bytes += count_bytes(reply.content)
        if self.nodes.setdefault(hello.client_id, node) != node:
            raise RunError(
                f"client-id must be unique, got {hello.client_id!r} from two nodes."
            )
        self.expected = self.expected or hello.num_partitions
        if hello.moments is not None:
            known = self._moments
            self._moments = hello.moments if known is None else known + hello.moments

    def _note_failure(self, node: int, reason: str | None) -> None:
        self._failures[node] += 1
        if self._failures[node] > self._max_retries:
            raise RunError(f"A client failed in the first exchange: {reason}")
        self.asked.discard(node)

    def shortfall(self, timeout: float) -> str:
        expected = str(self.expected) if self.expected else "any"
        return (
            f"Only {len(self.nodes)} of {expected} expected clients connected within "
            f"{timeout:g} s. Start the missing nodes, or lower wait-for."
        )

    def roster(self) -> Roster:
        nodes = dict(sorted(self.nodes.items(), key=lambda item: natural_key(item[0])))
        return Roster(nodes, self._moments, self._upload_bytes, self._download_bytes)


def natural_key(client: str) -> tuple[bool, int, str]:
    """Return a sort key: "2" before "10", names after numbers."""
    return (not client.isdecimal(), int(client) if client.isdecimal() else 0, client)
