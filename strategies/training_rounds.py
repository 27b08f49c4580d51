"""Rounds of training with Flower's own averaging.

Flower's strategies sample from all nodes with the global random numbers, pass a round
in which every client failed, and average whatever they are sent. What is added here
stands around them: this round's nodes are offered and no others, running statistics
are averaged apart, and a round without a valid reply is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from types import SimpleNamespace
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fed3r_app.core import Metrics
from fed3r_app.errors import RunError
from fed3r_app.wire import FIXED, RUNNING, ParityCheck, RecordError, count_bytes
from fed3r_app.words import plural
from strategies.messaging import Traffic, one_line
from strategies.registry import ClientRegistry
from strategies.reply_checks import (
    LOSS,
    METRICS,
    NUM_EXAMPLES,
    Layout,
    expected_layout,
    find_problem,
    has_diverged,
    keep_averaged_metrics,
    num_examples,
    read_number,
    received_fit,
)


@dataclass(frozen=True, eq=False)
class TrainedRound:
    """What came of a round."""

    arrays: ArrayRecord
    running: ArrayRecord | None
    loss: float
    clients: int
    num_samples: int
    traffic: Traffic
    # What the model that was sent gets right on the training images of each client.
    received: Mapping[str, Metrics] = field(default_factory=dict)


class DivergedError(RunError):
    """A round in which most clients had no finite loss with the model that was sent."""


@dataclass(eq=False)
class TrainingRounds:
    """Runs rounds of an optimiser on seeded cohorts of the clients.

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
    parity : ParityCheck or None
        Refuses clients that see a built-in picture otherwise than the server does, with
        their first reply.
    """

    optimizer: FedAvg
    registry: ClientRegistry
    clients: Sequence[str]
    per_round: int
    seed: int
    fixed: ArrayRecord | None = None
    parity: ParityCheck | None = None
    _see_the_same: set[int] = field(default_factory=set, init=False)
    _have_fixed: set[int] = field(default_factory=set, init=False)
    _have_trained: set[int] = field(default_factory=set, init=False)
    _failures: dict[str, str] = field(default_factory=dict, init=False)
    _received: dict[str, Metrics] = field(default_factory=dict, init=False)
    _diverged: int = field(default=0, init=False)

    def fix(self, arrays: ArrayRecord) -> None:
        """Have other arrays stay as they are from now on: all clients need them."""
        self.fixed = arrays
        self._have_fixed.clear()

    def cohort(self, number: int) -> list[str]:
        """Return the clients of a round."""
        random, total = np.random.default_rng([self.seed, number]), len(self.clients)
        size = min(self.per_round or total, total)
        drawn = random.choice(total, size, replace=False)
        return [self.clients[i] for i in sorted(drawn)]

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
        self._received, self._diverged = {}, 0
        nodes = self._nodes_of(cohort)
        if not nodes:
            raise self._all_failed(number, cohort)
        # This round's nodes: Flower's strategies ask a Grid for no more.
        offered = cast(Grid, SimpleNamespace(get_node_ids=lambda: list(nodes)))
        # Flower writes the round's number into the config it is given.
        config = ConfigRecord(dict(config.items()))
        messages = self.optimizer.configure_train(number, arrays, config, offered)
        messages = [self._complete(message, running) for message in messages]
        traffic = Traffic(down=sum(count_bytes(each.content) for each in messages))
        replies = list(self.registry.stream_replies(grid, messages, timeout))
        expected = expected_layout(messages[0])
        good = self._valid_replies(replies, nodes, expected, traffic)
        if self._diverged > len(good):
            raise DivergedError(
                f"{self._diverged} of the {plural(len(cohort), 'client')} of round "
                f"{number} have no finite loss"
            )
        if not good:
            raise self._all_failed(number, cohort)
        # Flower's mean of the rest; ours of the running statistics is Flower's too.
        averaged = _average_running(good)
        trained, metrics = self.optimizer.aggregate_train(number, good)
        assert trained is not None and metrics is not None
        return TrainedRound(
            arrays=trained,
            running=averaged,
            loss=read_number(metrics, LOSS),
            clients=len(good),
            num_samples=sum(num_examples(reply) for reply in good),
            traffic=traffic,
            received=self._received,
        )

    def _nodes_of(self, cohort: Sequence[str]) -> dict[int, str]:
        """Return the clients of a round by their nodes; who is gone has failed."""
        known = self.registry.nodes
        for client in cohort:
            if client not in known:
                reason = self.registry.refused.get(client, "not connected")
                self._fail(client, reason)
        return {known[client]: client for client in cohort if client in known}

    def _all_failed(self, number: int, cohort: Sequence[str]) -> RunError:
        reason = next(iter(self._failures.values()))
        return RunError(
            f"All {plural(len(cohort), 'client')} of round {number} failed; one said: "
            f"{reason}"
        )

    def _complete(self, message: Message, running: ArrayRecord | None) -> Message:
        """Return a message with what Flower's strategies don't know of beside it."""
        content = RecordDict(dict(message.content.items()))
        if running is not None:
            content[RUNNING] = running
        node = message.metadata.dst_node_id
        if self.fixed is not None and node not in self._have_fixed:
            content[FIXED] = self.fixed
        if self.parity and node not in self._see_the_same:
            self.parity.ask(content)
        return Message(
            content, dst_node_id=node, message_type=message.metadata.message_type
        )

    def _valid_replies(
        self,
        replies: Iterable[Message],
        nodes: dict[int, str],
        expected: Layout,
        traffic: Traffic,
    ) -> list[Message]:
        """Return the valid replies in the order of the clients; count all bytes."""
        good: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in nodes:
                continue
            if reply.has_error():
                self._have_fixed.discard(node)
                self._fail(nodes[node], reply.error.reason)
                continue
            traffic.up += count_bytes(reply.content)
            self._have_fixed.add(node)
            problem = self._parity_problem(node, nodes[node], reply)
            problem = problem or find_problem(reply, expected)
            if problem := problem or self._count_problem(nodes[node], reply):
                self._diverged += has_diverged(reply)
                self._fail(nodes[node], problem)
            else:
                good[node] = reply
                if fit := received_fit(reply):
                    self._received[nodes[node]] = fit
                self._warn_of_lost_state(node, nodes[node], reply)
                keep_averaged_metrics(reply)
        for node, client in nodes.items():
            if node not in good and client not in self._failures:
                self._fail(client, "no reply")
        # The order of arrival must not show in the mean.
        return [good[node] for node in nodes if node in good]

    def _parity_problem(self, node: int, client: str, reply: Message) -> str | None:
        """Return why a client is left out from now on, else None."""
        if self.parity and node not in self._see_the_same:
            try:
                self.parity.check_reply(reply.content)
            except RecordError as error:
                self.registry.refuse(client, str(error))
                return str(error)
            self._see_the_same.add(node)
        return None

    def _count_problem(self, client: str, reply: Message) -> str | None:
        """Return why a reply would weigh more than its client can, else None."""
        try:
            self.registry.check_count(client, num_examples(reply))
        except RecordError as error:
            return str(error)
        return None

    def _warn_of_lost_state(self, node: int, client: str, reply: Message) -> None:
        fresh = reply.content.metric_records[METRICS].get("fresh-control")
        if fresh and node in self._have_trained:
            log(WARNING, "Client %s lost its control variate: zero again", client)
        self._have_trained.add(node)

    def _fail(self, client: str, reason: str | None) -> None:
        self._failures[client] = one_line(reason)
        log(WARNING, "Client %s failed: %s", client, self._failures[client])


def _average_running(replies: Sequence[Message]) -> ArrayRecord | None:
    """Take the running statistics out of the replies; return their mean by images."""
    contents = []
    for reply in replies:
        if RUNNING in reply.content:
            running = reply.content.pop(RUNNING)
            metrics = reply.content.metric_records[METRICS]
            contents.append(RecordDict({RUNNING: running, METRICS: metrics}))
    return aggregate_arrayrecords(contents, NUM_EXAMPLES) if contents else None
