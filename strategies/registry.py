"""Who the clients of a run are, and what each has announced.

Node ids are random for each run. A client's own id is what a seed, a snapshot and a
person can hold on to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import FeatureMoments
from fed3r_app.wire import Hello, RecordError
from fed3r_app.wire.validation import shown
from strategies.messaging import IN_FLIGHT, Traffic, stream_replies


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
    num_samples : dict
        How many samples to train on a client has announced, where it may tell.
    refused : dict
        Why a client, or a node whose client is not known, does not take part.
    num_partitions : int
        Into how many parts the clients' one data set is split; 0 where each has its
        own images.
    feature_moments : dict
        The moments of each client's features, where they were asked for.
    versions : dict
        The version of fed3r that is installed at a client, where it said so.
    traffic : Traffic
        What the first exchange has cost.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    num_test_images: dict[str, int] = field(default_factory=dict)
    num_samples: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    num_partitions: int = 0
    feature_moments: dict[str, FeatureMoments] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids, sorted: numbers by value, other names after them."""
        return tuple(self.nodes)

    @property
    def moments(self) -> FeatureMoments | None:
        """The sum of the clients' feature moments."""
        moments = [self.feature_moments[c] for c in sorted(self.feature_moments)]
        return sum(moments[1:], start=moments[0]) if moments else None

    def check_count(self, client: str, number: int, *, of_test: bool = False) -> None:
        """Raise RecordError if a client speaks of more samples than it announced."""
        known = self.num_test_images if of_test else self.num_samples
        if number > (most := known.get(client, number)):
            raise RecordError(
                f"num-examples must be <= {most}, as announced, got {shown(number)}."
            )

    def client_of(self, node: int) -> str | None:
        """Return the client of a node.

        Linear in the number of clients: do not call per message.
        """
        return next((c for c, known in self.nodes.items() if known == node), None)

    def stream_replies(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterator[Message]:
        """Yield the replies to messages as they arrive; real nodes all work at once."""
        # Parts of one data set are simulated, as a rule: many share a machine.
        most = IN_FLIGHT if self.num_partitions else max(len(self.nodes), IN_FLIGHT)
        clients = {node: client for client, node in self.nodes.items()}
        return stream_replies(
            grid,
            messages,
            timeout=timeout,
            in_flight=most,
            name=lambda node: clients.get(node, f"node {node}"),
        )

    def add(self, node: int, hello: Hello) -> None:
        """Register a client and its node; its moments are added once."""
        client = hello.client_id
        if hello.moments is not None and client not in self.nodes:
            self.feature_moments[client] = hello.moments
        self.nodes[client] = node
        if hello.installed_version:
            self.versions[client] = hello.installed_version
        self.class_names[client] = hello.class_names
        self.num_test_images[client] = hello.num_test_images
        if hello.num_samples is not None:
            self.num_samples[client] = hello.num_samples
        self.num_partitions = self.num_partitions or hello.num_partitions

    def refuse(self, client: str, reason: str) -> None:
        """Leave a client out, and say why."""
        log(WARNING, "Left out: %s: %s", client, reason)
        self.refused[client] = reason
        self.leave_out([client])

    def leave_out(self, clients: Collection[str]) -> None:
        """Take out clients that are not to be asked."""
        for client in clients:
            self.nodes.pop(client, None)
            self.class_names.pop(client, None)
            self.feature_moments.pop(client, None)


def natural_key(client: str) -> tuple[bool, int, str]:
    """Return a sort key: "2" before "10", names after numbers."""
    return (not client.isdecimal(), int(client) if client.isdecimal() else 0, client)
