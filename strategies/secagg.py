"""Fed3R under secure aggregation: the server learns sums over groups of clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import RidgeStatistics, check_contribution
from fed3r_app.errors import RunError
from fed3r_app.privacy.release import round_counts
from fed3r_app.privacy.secagg import (
    Group,
    GroupFailed,
    IntegerStatistics,
    group_threshold,
)
from fed3r_app.privacy.secagg.fixed_point import vector_length
from fed3r_app.progress import Progress
from fed3r_app.runs.ledger import ACCEPTED, FAILED, LedgerEntry
from fed3r_app.wire import count_bytes
from fed3r_app.wire import secagg as records
from strategies.accumulator import Accumulator
from strategies.discovery import ClientRegistry
from strategies.fed3r import Fed3R
from strategies.messaging import printable, stream_replies
from strategies.secagg_sampling import GroupSampler


@dataclass(frozen=True)
class _Stage:
    """One of the four exchanges with a group.

    Parameters
    ----------
    message_type : str
        Flower's name of the request.
    asked : callable
        Which members of a group are asked.
    request : callable
        What a member is asked, given the config of a plain request.
    take : callable
        Notes a member's reply in the group; raises ValueError for a bad one.
    done : callable
        Which members have replied.
    what : str
        What they have done then.
    """

    message_type: str
    asked: Callable[[Group], Collection[int]]
    request: Callable[[Group, int, ConfigRecord], RecordDict]
    take: Callable[[Group, int, RecordDict], None]
    done: Callable[[Group], Collection[int]]
    what: str


_STAGES = (
    _Stage(
        "query.keys",
        asked=lambda group: group.clients,
        request=lambda group, _, config: records.pack_attempt(group.attempt),
        take=lambda group, i, reply: group.take_keys(i, records.read_keys(reply)),
        done=lambda group: group.keys,
        what="sent keys",
    ),
    _Stage(
        "query.share",
        asked=lambda group: group.keys,
        request=lambda group, i, config: records.pack_group(
            group.attempt, i, group.keys, group.threshold
        ),
        take=lambda group, i, reply: group.take_shares(i, records.read_sealed(reply)),
        done=lambda group: group.sealed,
        what="shared their secrets",
    ),
    _Stage(
        "query.masked",
        asked=lambda group: group.sealed,
        request=lambda group, i, config: records.ask_masked(
            group.attempt, group.sealed_for(i), config
        ),
        take=lambda group, i, reply: group.take_masked(i, records.read_masked(reply)),
        done=lambda group: group.survivors,
        what="sent a masked vector",
    ),
    _Stage(
        "query.unmask",
        asked=lambda group: group.survivors,
        request=lambda group, _, config: records.pack_survivors(
            group.attempt, group.survivors
        ),
        take=lambda group, i, reply: group.take_answer(i, records.read_answer(reply)),
        done=lambda group: group.answers,
        what="answered the last request",
    ),
)


class SecureAggregation(Fed3R):
    """Fed3R whose round is four exchanges with groups of clients.

    A group of which too few stay is given up, and its members are asked again in
    another group with other keys. But a client that has answered the last request in
    vain is lost, because it answers that once only, and so is a client in a sum that
    was seen and refused: no client is in two sums that were seen.

    Parameters
    ----------
    registry : ClientRegistry
        The clients and their nodes.
    sampler : GroupSampler
        Samples the groups of each round.
    accumulator : Accumulator
        The sum, before scaling, with the encoding of features as integers.
    threshold_share : float
        Share of a group that must stay to the end.
    options
        See ``Fed3R``.
    """

    sampler: GroupSampler

    def __init__(
        self,
        registry: ClientRegistry,
        sampler: GroupSampler,
        accumulator: Accumulator,
        *,
        threshold_share: float,
        **options: Any,
    ) -> None:
        super().__init__(registry, sampler, accumulator, **options)
        assert accumulator.encoding is not None
        self._encoding = accumulator.encoding
        self._threshold_share = threshold_share

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> MetricRecord:
        """Ask the round's groups the four requests; return the round's metrics."""
        self._cohort = self.sampler.draw()
        groups = [self._new_group(clients) for clients in self.sampler.groups]
        sizes = ", ".join(str(len(group.clients)) for group in groups)
        log(INFO, "round %d: groups of %s clients", server_round, sizes)
        for stage in _STAGES:
            self._ask(stage, groups, config, grid, timeout)
            groups = [group for group in groups if self._enough(stage, group)]
        for group in groups:
            self._fold_group(group)
        self.sampler.close_round(self._cohort)
        return self.round_metrics()

    def _new_group(self, clients: list[str]) -> Group:
        threshold = group_threshold(len(clients), self._threshold_share)
        return Group(clients, threshold, vector_length(*self.accumulator.space))

    def _ask(
        self,
        stage: _Stage,
        groups: list[Group],
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> None:
        """Ask the members of all groups one request, and take their replies."""
        waiting = {
            self.registry.nodes[group.clients[i]]: (group, i)
            for group in groups
            for i in stage.asked(group)
        }
        total, progress = len(waiting), Progress(stage.message_type)
        requests = self._stage_requests(stage, dict(waiting), config)
        in_flight = self.registry.in_flight
        replies = stream_replies(grid, requests, timeout=timeout, in_flight=in_flight)
        for reply in replies:
            group, i = waiting.pop(reply.metadata.src_node_id, (None, 0))
            if group is not None:
                self._take(stage, group, i, reply)
            progress(total - len(waiting), total)
        for group, i in waiting.values():
            self._drop(group.clients[i], f"no reply to {stage.message_type}")

    def _stage_requests(
        self,
        stage: _Stage,
        members: dict[int, tuple[Group, int]],
        config: ConfigRecord,
    ) -> Iterator[Message]:
        for node, (group, i) in members.items():
            content = stage.request(group, i, config)
            self.traffic.down += count_bytes(content)
            yield Message(content, dst_node_id=node, message_type=stage.message_type)

    def _take(self, stage: _Stage, group: Group, i: int, reply: Message) -> None:
        if reply.has_error():
            self._drop(group.clients[i], printable(reply.error.reason))
            return
        self.traffic.up += count_bytes(reply.content)
        try:
            stage.take(group, i, reply.content)
        except ValueError as error:
            reason = f"its reply to {stage.message_type} was refused: {error}"
            self._drop(group.clients[i], printable(reason))

    def _drop(self, client: str, reason: str) -> None:
        """Note who drops out of its group; it will be asked again in another."""
        self._fail(LedgerEntry(client, FAILED, reason=reason))

    def _enough(self, stage: _Stage, group: Group) -> bool:
        """Return whether a group continues; else give it up."""
        try:
            group.check_enough(stage.done(group), stage.what)
        except GroupFailed as failure:
            faithful = set(stage.done(group)) - group.answers.keys()
            # Late answers could unmask this sum yet, and noise may be in one sum only.
            in_doubt = self.accumulator.noise and stage is _STAGES[-1]
            lost = group.survivors if in_doubt else group.answers
            self._abandon(group, str(failure), lost=lost, excused=faithful)
            return False
        return True

    def _fold_group(self, group: Group) -> None:
        """Add a group's sum; its survivors are counted, the others may come again."""
        try:
            stats = self._unmask(group)
        except (GroupFailed, ValueError) as failure:
            # Who was silent at the last request is in that sum as well.
            reason = f"its group's sum was refused: {failure}"
            self._abandon(group, reason, lost=group.survivors)
            return
        # A noisy n proves nothing, and the budget is spent.
        exact = self.accumulator.noise is None
        if exact and self.accumulator.n + stats.n > self._encoding.max_samples:
            raise RunError(
                "secagg-max-samples must be at least the number of all clients' "
                f"images, {self.accumulator.n + stats.n} so far, got "
                f"{self._encoding.max_samples}: larger sums may be rounded."
            )
        # No digest and no number of images: of a client only its group is known.
        what = f"group of {len(group.survivors)}"
        clients = [group.clients[i] for i in sorted(group.survivors)]
        for client in clients:
            self._record(LedgerEntry(client, ACCEPTED, what))
        self.accumulator.add(stats, dict.fromkeys(clients, what), group.threshold)
        for client in clients:
            self.sampler.count(client)

    def _unmask(self, group: Group) -> RidgeStatistics:
        """Return the exact statistics of a group's survivors, or with their noise."""
        integers = IntegerStatistics.from_vector(
            group.unmask(), *self.accumulator.space
        )
        if self.accumulator.noise:  # with noise in them, sums contradict themselves
            return round_counts(integers, self._encoding.bits).statistics(
                self._encoding
            )
        # What can be checked of a sum: no client's own part is known.
        integers.check_within(self._encoding)
        stats = integers.statistics(self._encoding)
        check_contribution(self._encoding.scaled(stats), self.accumulator.limits)
        return stats

    def _abandon(
        self,
        group: Group,
        reason: str,
        *,
        lost: Collection[int],
        excused: Collection[int] = (),
    ) -> None:
        """Give a group up: who is lost is left alone, who did its part asked again."""
        log(WARNING, "A group of %d is given up: %s", len(group.clients), reason)
        for i in sorted(lost):
            answered = i in group.answers
            done = "answered the last request" if answered else "is in the sum"
            said = f"lost: it {done}, but {reason}"
            self._fail(LedgerEntry(group.clients[i], FAILED, reason=said))
            self.sampler.give_up(group.clients[i], said)
        for i in excused:
            self.sampler.refund_attempt(group.clients[i], reason)
