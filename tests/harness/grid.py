"""The one Grid of the tests: nodes in this process, and hooks in their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fed3r_app.client_app import app as client_app
from fed3r_app.config import Value
from simulation.engines.inline import InlineGrid

Node = Callable[[Message], Message | list[Message] | None]
Before = Callable[[Message, Context], object]
Tamper = Callable[[Context, RecordDict, RecordDict], object]
Silent = Callable[[Any, str], object]  # of a client and a kind of request
UNHEARD = "unheard"


@dataclass(frozen=True)
class Exchange:
    """A request to a client and its reply, None for an error or a lost one."""

    client: Any
    kind: str
    request: Any  # RecordDict
    reply: Any  # RecordDict or None

    @property
    def round(self) -> Any:
        return self.request.config_records["config"]["server-round"]

    def sent(self, record: str = "arrays") -> dict[str, Any]:
        return _named(self.request.array_records[record])

    def received(self, record: str = "arrays") -> dict[str, Any]:
        return _named(self.reply.array_records[record])

    @property
    def num_examples(self) -> Any:
        return self.reply.metric_records["metrics"]["num-examples"]


class SpyGrid(InlineGrid):
    """Keeps what travels, and stands in its way where asked to.

    A node is a function of a message, or the real ClientApp where it was connected by
    its node config. A node that returns None has no reply yet.

    Parameters
    ----------
    nodes : dict
        Nodes by id; may change at any time.
    seed : int or None
        Replies come in an order drawn from it; None: in the order of the requests.

    Hooks of connected nodes: ``before(message, context)`` comes ahead of each request
    and may change it, or the client's state, or raise, which is an error reply;
    ``tamper(context, request, reply)`` may change the records of a reply;
    ``silent(client, kind)`` says whose replies are lost, or, where it returns
    ``UNHEARD``, who never gets the request. Messages for which ``gone(message)`` is
    true are refused, as those to unknown nodes are. ``infos`` is what Flower knows of
    nodes besides their ids.
    """

    def __init__(
        self, nodes: dict[int, Node] | None = None, seed: int | None = 0
    ) -> None:
        super().__init__(cast(ClientApp, self._run_client), 0, {})
        self.nodes = {} if nodes is None else nodes
        self.log: list[tuple[int, str]] = []  # (node, kind) of all that was pushed
        self.most_in_flight = 0
        self.exchanges: list[Exchange] = []
        self.before: Before = lambda message, context: None
        self.tamper: Tamper = lambda context, request, reply: None
        self.silent: Silent = lambda client, kind: False
        self.gone: Callable[[Message], object] = lambda message: False
        self.infos: dict[int, NodeInfo] = {}
        self._random = None if seed is None else np.random.default_rng(seed)

    def connect(
        self, node_id: int, node_config: Mapping[str, Value], run_config: Any
    ) -> None:
        """Add a node that runs the app."""
        state, config = RecordDict(), dict(node_config)
        context = Context(self.run_id, node_id, config, state, run_config)
        self._contexts[node_id] = context
        self.nodes[node_id] = lambda message: self._exchange(message, context)

    def disconnect(self, node_id: int) -> Mapping[str, Value]:
        """Remove a connected node; return its node config."""
        del self.nodes[node_id]
        return self._contexts.pop(node_id).node_config

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [self.infos.get(node, NodeInfo(node_id=node)) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.nodes and not self.gone(message):
                self.log.append((node, message.metadata.message_type))
                pushed += super().push_messages([message])
            else:
                pushed.append("")  # as over HTTP
        self.most_in_flight = max(self.most_in_flight, len(self._waiting))
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        wanted = [key for key in message_ids if key in self._waiting]
        if self._random is not None:
            wanted = [wanted[i] for i in self._random.permutation(len(wanted))]
        for key in wanted:
            message = self._waiting[key]
            node = self.nodes.get(message.metadata.dst_node_id)
            reply = node(message) if node else []
            if reply is not None:
                del self._waiting[key]
                yield from reply if isinstance(reply, list) else [reply]

    def _run_client(self, message: Message, context: Context) -> Message:
        self.before(message, context)
        return client_app(message, context)

    def _exchange(self, message: Message, context: Context) -> Message | list[Message]:
        client = context.node_config.get("partition-id", context.node_id)
        kind = message.metadata.message_type
        lost = self.silent(client, kind)
        if lost == UNHEARD:
            return []
        request = RecordDict(dict(message.content.items()))
        reply = self._answer(message)
        seen = None
        if not (reply.has_error() or lost):
            self.tamper(context, request, reply.content)
            # Copied: the server takes records out of a reply.
            seen = RecordDict(dict(reply.content.items()))
        self.exchanges.append(Exchange(client, kind, request, seen))
        return [] if lost else reply

    @property
    def contexts(self) -> dict[int, Context]:
        """The contexts of the connected nodes, by id."""
        return self._contexts

    @property
    def asked(self) -> dict[str, int]:
        """How often each kind of request was asked, in the order of the first ones."""
        return dict(Counter(kind for _, kind in self.log))

    def of(self, kind: str, client: object = None) -> list[Exchange]:
        """Return the exchanges of a kind, of one client where named."""
        return [
            e for e in self.exchanges if e.kind == kind and client in (None, e.client)
        ]


def _named(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}
