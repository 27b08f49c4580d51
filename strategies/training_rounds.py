"""Rounds of training with Flower's own averaging.

Flower's strategies sample from all nodes with the global random numbers, pass a round
in which everybody failed, and average whatever they are sent. What is added here
stands around them: this round's nodes are offered and no others, running statistics
are averaged apart, and a round without a valid reply is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.run import Run
from numpy.typing import NDArray

from fed3r_app.errors import RunError
from fed3r_app.wire import FIXED, RUNNING, RecordError, count_bytes, read_array
from strategies.discovery import ClientRegistry
from strategies.messaging import printable, stream_replies

# record -> array -> dtype and shape
Layout = dict[str, dict[str, tuple[str, tuple[int, ...]]]]
Named = dict[str, dict[str, NDArray[Any]]]
_METRICS, _NUM_EXAMPLES, _LOSS = "metrics", "num-examples", "train-loss"


@dataclass(frozen=True, eq=False)
class TrainedRound:
    """What came of a round."""

    arrays: ArrayRecord
    running: ArrayRecord | None
    loss: float
    clients: int
    num_samples: int
    upload_bytes: int
    download_bytes: int


class TrainingRounds:
    """Runs rounds of an optimiser on seeded sampler of the clients.

    Parameters
    ----------
    optimizer : FedAvg
        Flower's FedAvg or a subclass; it does the averaging.
    registry : ClientRegistry
        The nodes of those clients that are there.
    clients : sequence of str
        All clients to draw from, there or not.
    per_round : int
        Clients a round, distinct; 0 means all.
    seed : int
        A round's cohort depends on it and on the round's number alone.
    fixed : ArrayRecord or None
        Arrays that a client needs and does not train: sent to it once.
    """

    def __init__(
        self,
        optimizer: FedAvg,
        registry: ClientRegistry,
        clients: Sequence[str],
        *,
        per_round: int,
        seed: int,
        fixed: ArrayRecord | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._roster = registry
        self._clients = clients
        self._per_round = min(per_round or len(clients), len(clients))
        self._seed = seed
        self._fixed = fixed
        self._have_fixed: set[int] = set()
        self._have_trained: set[int] = set()
        self._failures: dict[str, str] = {}

    def cohort(self, number: int) -> list[str]:
        """Return the clients of a round."""
        random = np.random.default_rng([self._seed, number])
        size, clients = self._per_round, self._clients
        drawn = random.choice(len(clients), size, replace=False)
        return [clients[i] for i in sorted(drawn)]

    def run(
        self,
        grid: Grid,
        number: int,
        arrays: ArrayRecord,
        running: ArrayRecord | None,
        config: ConfigRecord,
        timeout: float,
    ) -> TrainedRound:
        """Train one round; raise RunError if no reply was valid."""
        cohort, self._failures = self.cohort(number), {}
        nodes = self._nodes_of(cohort)
        if not nodes:
            raise self._all_failed(number, cohort)
        offered = _CohortGrid(grid, list(nodes))
        # Flower writes the round's number into the config it is given.
        config = ConfigRecord(dict(config.items()))
        messages = self.optimizer.configure_train(number, arrays, config, offered)
        messages = [self._complete(message, running) for message in messages]
        down = sum(count_bytes(message.content) for message in messages)
        at_once = self._roster.in_flight
        replies = list(
            stream_replies(grid, messages, timeout=timeout, in_flight=at_once)
        )
        good, up = self._sort_out(replies, nodes, _to_come_back(messages[0]))
        if not good:
            raise self._all_failed(number, cohort)
        # Flower's mean of the rest; ours of the running statistics is Flower's too.
        averaged = _average_running(good)
        trained, metrics = self.optimizer.aggregate_train(number, good)
        assert trained is not None and metrics is not None
        return TrainedRound(
            arrays=trained,
            running=averaged,
            loss=_number(metrics, _LOSS),
            clients=len(good),
            num_samples=sum(_num_examples(reply) for reply in good),
            upload_bytes=up,
            download_bytes=down,
        )

    def _nodes_of(self, cohort: Sequence[str]) -> dict[int, str]:
        """Return the clients of a round by their nodes; who is gone has failed."""
        known = self._roster.nodes
        for client in cohort:
            if client not in known:
                self._fail(client, "not connected")
        return {known[client]: client for client in cohort if client in known}

    def _all_failed(self, number: int, cohort: Sequence[str]) -> RunError:
        reason = next(iter(self._failures.values()))
        return RunError(
            f"All {len(cohort)} clients of round {number} failed; one said: {reason}"
        )

    def _complete(self, message: Message, running: ArrayRecord | None) -> Message:
        """Return a message with what Flower's strategies don't know of beside it."""
        content = RecordDict(dict(message.content.items()))
        if running is not None:
            content[RUNNING] = running
        node = message.metadata.dst_node_id
        if self._fixed is not None and node not in self._have_fixed:
            content[FIXED] = self._fixed
        return Message(
            content, dst_node_id=node, message_type=message.metadata.message_type
        )

    def _sort_out(
        self, replies: Iterable[Message], nodes: dict[int, str], expected: Layout
    ) -> tuple[list[Message], int]:
        """Return the valid replies in the order of the clients, and all bytes."""
        good: dict[int, Message] = {}
        up = 0
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in nodes:
                continue
            if reply.has_error():
                self._have_fixed.discard(node)
                self._fail(nodes[node], reply.error.reason)
                continue
            up += count_bytes(reply.content)
            self._have_fixed.add(node)
            if problem := _problem(reply, expected):
                self._fail(nodes[node], problem)
            else:
                good[node] = reply
                self._note_lost_state(node, nodes[node], reply)
                _drop_other_metrics(reply)
        for node, client in nodes.items():
            if node not in good and client not in self._failures:
                self._fail(client, "no reply")
        # The order of arrival must not show in the sums.
        return [good[node] for node in nodes if node in good], up

    def _note_lost_state(self, node: int, client: str, reply: Message) -> None:
        fresh = reply.content.metric_records[_METRICS].get("fresh-control")
        if fresh and node in self._have_trained:
            log(WARNING, "Client %s lost its control variate: zero again", client)
        self._have_trained.add(node)

    def _fail(self, client: str, reason: str | None) -> None:
        self._failures[client] = printable(reason)
        log(WARNING, "Client %s failed: %s", client, self._failures[client])


class _CohortGrid(Grid):
    """A Grid that offers some of the nodes; all else is the real one's."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return this round's nodes."""
        return self._nodes

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return self._grid.create_message(
            content, message_type, dst_node_id, group_id, ttl
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def _average_running(replies: Sequence[Message]) -> ArrayRecord | None:
    """Take the running statistics out of the replies; return their mean by images."""
    contents = []
    for reply in replies:
        if RUNNING in reply.content:
            metrics = reply.content.metric_records[_METRICS]
            taken = reply.content.array_records[RUNNING]
            del reply.content[RUNNING]
            contents.append(RecordDict({RUNNING: taken, _METRICS: metrics}))
    return aggregate_arrayrecords(contents, _NUM_EXAMPLES) if contents else None


def _to_come_back(request: Message) -> Layout:
    """Return the layout of what a request holds and its reply must hold too."""
    records = request.content.array_records.items()
    return _layout(_read({key: record for key, record in records if key != FIXED}))


def _problem(reply: Message, expected: Layout) -> str | None:
    """Return why a reply can't be averaged in, else None."""
    arrays, metrics = reply.content.array_records, reply.content.metric_records
    if "arrays" not in arrays or set(metrics) != {_METRICS}:
        return "its reply has no arrays or no metrics"
    return _metrics_problem(metrics[_METRICS]) or _arrays_problem(arrays, expected)


def _metrics_problem(metrics: MetricRecord) -> str | None:
    count, loss = metrics.get(_NUM_EXAMPLES), metrics.get(_LOSS)
    if type(count) is not int or count < 0:
        return f"its {_NUM_EXAMPLES} must be a whole number >= 0, got {count!r}"
    if not count:
        return "it has no images"
    if type(loss) not in (int, float) or not math.isfinite(_number(metrics, _LOSS)):
        return f"its {_LOSS} must be a finite number, got {loss!r}"
    return None


def _arrays_problem(records: Mapping[str, ArrayRecord], expected: Layout) -> str | None:
    try:
        arrays = _read(records)
    except RecordError as error:
        return str(error)
    if _layout(arrays) != expected:
        return "its arrays are not those it was sent"
    for named in arrays.values():
        for name, array in named.items():
            if not np.isfinite(array).all():
                return f"its {name} is not finite"
    return None


def _read(records: Mapping[str, ArrayRecord]) -> Named:
    return {
        key: {name: read_array(record, name) for name in record}
        for key, record in records.items()
    }


def _layout(arrays: Named) -> Layout:
    # Of the data itself: what a reply says about it may be wrong.
    return {
        key: {name: (array.dtype.str, array.shape) for name, array in named.items()}
        for key, named in arrays.items()
    }


def _drop_other_metrics(reply: Message) -> None:
    """Keep the metrics that are averaged: Flower wants the same from everybody."""
    metrics = reply.content.metric_records[_METRICS]
    kept = {key: metrics[key] for key in (_NUM_EXAMPLES, _LOSS)}
    reply.content[_METRICS] = MetricRecord(kept)


def _num_examples(reply: Message) -> int:
    metrics = reply.content.metric_records[_METRICS]
    return int(_number(metrics, _NUM_EXAMPLES))


def _number(metrics: MetricRecord, key: str) -> float:
    return float(metrics[key])  # type: ignore[arg-type]
