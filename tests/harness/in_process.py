"""A Flower Grid whose nodes live in this process, and the nodes."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fed3r_app.wire import Hello, add_digest, pack_hello, pack_statistics

RUN = 1
Node = Callable[[Message], Message | list[Message] | None]


class InProcessGrid(Grid):
    """Runs a node, a function, when its reply is pulled; silent nodes return None.

    Replies come in an order drawn from ``seed``. ``log`` holds (node, message type) of
    all that was pushed, ``most_in_flight`` the most messages ever under way.
    """

    def __init__(self, nodes: dict[int, Node], seed: int = 0) -> None:
        self.nodes = nodes
        self.log: list[tuple[int, str]] = []
        self.most_in_flight = 0
        self._pending: dict[str, Message] = {}
        self._ids = itertools.count()
        self._random = np.random.default_rng(seed)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: object, **options: object) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.nodes:
                continue  # as Flower does: dropped, unsaid
            message_id = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            self.log.append((node, message.metadata.message_type))
            pushed.append(message_id)
        self.most_in_flight = max(self.most_in_flight, len(self._pending))
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = [key for key in message_ids if key in self._pending]
        for i in self._random.permutation(len(wanted)):
            message = self._pending[wanted[i]]
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                del self._pending[wanted[i]]
                yield from reply if isinstance(reply, list) else [reply]


@pytest.fixture(autouse=True)
def _a_run(monkeypatch):
    """Messages can only be made inside a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)


@pytest.fixture
def make_grid():
    return InProcessGrid


@pytest.fixture
def fail():
    """Make an error reply."""

    def reply(message, reason="It broke."):
        return Message(Error(code=0, reason=reason), reply_to=message)

    return reply


@pytest.fixture
def say_hello():
    """Make the reply to the first request."""

    def reply(message, client, num_partitions=0, moments=None):
        content = pack_hello(Hello(client, num_partitions, moments))
        return Message(content, reply_to=message)

    return reply


@pytest.fixture
def reply_with():
    """Make a reply with the given records."""

    def reply(message, **records):
        return Message(RecordDict(records), reply_to=message)

    return reply


@pytest.fixture
def send_statistics(reply_with):
    """Make the reply with the statistics of some samples, float64 unless told."""

    def reply(
        message, Z, y, num_classes, form="factor", dtype="float64", digest="0" * 64
    ):
        record = pack_statistics(
            torch.as_tensor(Z), torch.as_tensor(y), num_classes, form, dtype
        )
        made = reply_with(message, arrays=record)
        add_digest(made.content, digest)
        return made

    return reply


@pytest.fixture
def app_node():
    """Make a node that runs a real ClientApp."""

    def make(app, run_config, node_config, node_id=RUN):
        def node(message):
            context = Context(
                run_id=RUN,
                node_id=node_id,
                node_config=dict(node_config),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            return app(message, context)

        return node

    return make
