"""Fed3R under secure aggregation: the server learns sums over groups of clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import INFO, WARNING
from operator import attrgetter
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.console.progress import Progress
from fed3r_app.core import RidgeStatistics, check_contribution
from fed3r_app.privacy.release import round_counts
from fed3r_app.privacy.secagg import (
    FixedPointEncoding,
    Group,
    GroupFailed,
    IntegerStatistics,
    group_threshold,
)
from fed3r_app.privacy.secagg.fixed_point import vector_length
from fed3r_app.runs.ledger import ACCEPTED, LedgerEntry
from fed3r_app.wire import count_bytes
from fed3r_app.wire import secagg as records
from strategies.fed3r import Fed3R
from strategies.messaging import same_request
from strategies.sample_counts import outnumbering
from strategies.secagg_sampling import GroupSampler
from strategies.stopping import undisturbed

_MOST_OF_TWO = 10  # how many times the samples of the other group
Members = Callable[[Group], Collection[int]]


class _Stage(NamedTuple):
    """One of the four exchanges with a group."""

    message_type: str
    # What a member is asked, given the config of a plain request.
    request: Callable[[Group, int, ConfigRecord], RecordDict]
    # From a member's reply to the group; ValueError for a bad one.
    read: Callable[[RecordDict], Any]
    take: Callable[[Group, int, Any], None]
    done: Members  # those who have replied, and are asked next
    what: str  # they have done then


_STAGES = (
    _Stage(
        "query.keys",
        lambda group, i, config: records.ask_keys(group.attempt, config),
        records.read_keys,
        Group.take_keys,
        attrgetter("keys"),
        "sent keys",
    ),
    _Stage(
        "query.share",
        lambda group, i, config: records.pack_group(
            group.attempt, i, group.keys, group.threshold
        ),
        records.read_sealed,
        Group.take_shares,
        attrgetter("sealed"),
        "shared their secrets",
    ),
    _Stage(
        "query.masked",
        lambda group, i, config: records.ask_masked(
            group.attempt, group.sealed_for(i), config
        ),
        records.read_masked,
        Group.take_masked,
        attrgetter("survivors"),
        "sent a masked vector",
    ),
    _Stage(
        "query.unmask",
        lambda group, i, config: records.pack_survivors(group.attempt, group.survivors),
        records.read_answer,
        Group.take_answer,
        attrgetter("answers"),
        "answered the last request",
    ),
)


@dataclass(eq=False, kw_only=True)
class SecureAggregation(Fed3R):
    """Fed3R whose round is four exchanges with groups of clients.

    A group of which too few stay is given up, and its members are asked again in
    another group with other keys. But a client that has answered the last request in
    vain is lost, because it answers that once only, and so is a client in a sum that
    was seen and refused: no client is in two sums that were seen.

    Parameters
    ----------
    sampler : GroupSampler
        Samples the groups of each round.
    accumulator : Accumulator
        The sum, before scaling, with the encoding of features as integers.
    threshold_share : float
        Share of a group that must stay to the end. For the others see ``Fed3R``.
    compare_groups : bool
        Whether a group of more samples than all others together is dropped: those of a
        round are compared with each other and with what was counted before.
    """

    sampler: GroupSampler
    threshold_share: float
    compare_groups: bool = False
    _silent: set[str] = field(default_factory=set, init=False)
    _num_groups: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Count what an earlier part of the run has left as one group."""
        super().__post_init__()
        self._num_groups = 1 if self.accumulator.contributions else 0

    @property
    def _encoding(self) -> FixedPointEncoding:
        assert self.accumulator.encoding is not None
        return self.accumulator.encoding

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> MetricRecord:
        """Ask the round's groups the four requests; return the round's metrics."""
        self._absence.timeout, self._silent = timeout, set()
        self._cohort = self.sampler.draw()
        # A group can't begin without its members, and what they do for it is in vain.
        self._absence.present(grid, self._cohort, wait_for_all=True)
        groups = [self._new_group(clients) for clients in self.sampler.groups]
        sizes = ", ".join(str(len(group.clients)) for group in groups)
        log(INFO, "Round %d: clients in groups of %s", server_round, sizes)
        asked: Members = attrgetter("clients")
        for stage in _STAGES:
            members = [(group, i) for group in groups for i in asked(group)]
            self._ask(stage, members, config, grid, timeout)
            groups = [group for group in groups if self._enough(stage, group)]
            asked = stage.done
        self._fold_groups(groups)
        self._progress(len(self.sampler.counted), len(self.sampler.clients))
        self._close_round(self._silent - self.sampler.counted)
        return self.round_metrics()

    def _new_group(self, clients: list[str]) -> Group:
        threshold = group_threshold(len(clients), self.threshold_share)
        return Group(clients, threshold, vector_length(*self.accumulator.space))

    def _ask(
        self,
        stage: _Stage,
        members: list[tuple[Group, int]],
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> None:
        """Ask some members of groups one request, and take their replies."""
        nodes = self.registry.nodes
        waiting = {nodes[group.clients[i]]: (group, i) for group, i in members}

        def requests() -> Iterator[Message]:
            for group, i in members:
                content = stage.request(group, i, config)
                node = [nodes[group.clients[i]]]
                yield from same_request(node, content, stage.message_type, self.traffic)

        with Progress(f"group members that {stage.what}") as progress:
            for reply in self.registry.stream_replies(grid, requests(), timeout):
                group, i = waiting.pop(reply.metadata.src_node_id, (None, 0))
                if group is not None:
                    self._take(stage, group, i, reply)
                progress(len(members) - len(waiting), len(members))
        for group, i in waiting.values():
            self._fail(group.clients[i], f"no reply to {stage.message_type}")
            self._silent.add(group.clients[i])

    def _take(self, stage: _Stage, group: Group, i: int, reply: Message) -> None:
        """Keep a reply; a client that drops out is asked again in another group."""
        if reply.has_error():
            self._take_error(group.clients[i], reply)
            return
        self.traffic.up += count_bytes(reply.content)
        is_first = stage is _STAGES[0]
        if is_first and not self._sees_the_same(group.clients[i], reply):
            return
        try:
            stage.take(group, i, stage.read(reply.content))
        except ValueError as error:
            reason = f"its reply to {stage.message_type} was refused: {error}"
            self._fail(group.clients[i], reason)

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

    def _fold_groups(self, groups: Collection[Group]) -> None:
        """Add the groups' sums, but for one of more samples than all others."""
        sums: dict[Group, IntegerStatistics] = {}
        for group in groups:
            with self._dropped_if_refused(group):
                sums[group] = self._unmask(group)
        # Python's integers: noise, or a lie, may be anywhere in 64 bits.
        sizes = {group: sum(each.counts.tolist()) for group, each in sums.items()}
        outweighing = self._outweighing(sizes) if self.compare_groups else []
        # The smallest first: where there are too many samples in all, it is the largest
        # that is one too many.
        for group in sorted(sums, key=lambda each: sizes[each]):
            with self._dropped_if_refused(group):
                if group in outweighing:
                    members = ", ".join(group.clients.values())
                    raise GroupFailed(
                        f"it is of {sizes[group]} samples, far more than all other "
                        f"groups together; its members are {members}"
                    )
                self._fold_group(group, sums[group])

    def _outweighing(self, sizes: Mapping[Group, int]) -> list[Group]:
        """Return the groups that have more samples than all others together.

        Of two groups one has more as a rule: ten times as many is too many. With a
        single group there is nothing to compare.
        """
        all_sizes: dict[Group | None, int] = dict(sizes.items())
        if self._num_groups:
            all_sizes[None] = self.accumulator.n
        if self._num_groups + len(sizes) > 2:
            return [group for group in outnumbering(all_sizes) if group is not None]
        total = sum(all_sizes.values())
        return [
            group for group, n in sizes.items() if 0 < _MOST_OF_TWO * (total - n) < n
        ]

    def _fold_group(self, group: Group, integers: IntegerStatistics) -> None:
        """Add a group's sum; its survivors are counted, the others may come again."""
        stats = self._statistics(integers)
        # No digest and no number of images: of a client only its group is known.
        what = f"group of {len(group.survivors)}"
        clients = [group.clients[i] for i in sorted(group.survivors)]
        with undisturbed():
            for client in clients:
                self._record(LedgerEntry(client, ACCEPTED, what))
            self.accumulator.add(stats, dict.fromkeys(clients, what), group.threshold)
            self._num_groups += 1
            for client in clients:
                self.sampler.count(client)

    @contextmanager
    def _dropped_if_refused(self, group: Group) -> Iterator[None]:
        """Give a group up if its sum is refused: it costs the group, not the run."""
        try:
            yield
        except (GroupFailed, ValueError) as failure:
            # Who was silent at the last request is in that sum as well.
            reason = f"its group's sum was refused: {failure}"
            self._abandon(group, reason, lost=group.survivors)

    def _unmask(self, group: Group) -> IntegerStatistics:
        """Return the sum over a group's survivors, its counts in whole samples."""
        encoding, space = self._encoding, self.accumulator.space
        integers = IntegerStatistics.from_vector(group.unmask(), *space)
        if self.accumulator.noise:  # with noise in them, sums contradict themselves
            return round_counts(integers, encoding.bits)
        integers.check_within(encoding)
        return integers

    def _statistics(self, integers: IntegerStatistics) -> RidgeStatistics:
        """Return the statistics of a sum that goes with what was counted before."""
        encoding = self._encoding
        stats = integers.statistics(encoding)
        if self.accumulator.noise:  # a noisy n proves nothing
            return stats
        if (n := self.accumulator.n + stats.n) > encoding.max_samples:
            raise ValueError(
                "secagg-max-samples must be at least the number of all clients' "
                f"images, {n} so far, got {encoding.max_samples}: larger sums may be "
                "rounded."
            )
        # What can be checked of a sum: no client's own part is known.
        check_contribution(encoding.scaled(stats), self.accumulator.limits)
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
            self._fail(group.clients[i], said)
            self.sampler.give_up(group.clients[i], said)
        for i in excused:
            self.sampler.refund_attempt(group.clients[i], reason)
