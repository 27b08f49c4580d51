"""Fed3R: one exchange of statistics with each client, a classifier in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fed3r_app.console.progress import Progress
from fed3r_app.core import Classifier, Contribution
from fed3r_app.runs.ledger import ACCEPTED, FAILED, REFUSED, REPEATED, LedgerEntry
from fed3r_app.wire import (
    ParityCheck,
    RecordError,
    count_bytes,
    pack_classifier,
    read_digest,
    read_image_counts,
    read_parity,
)
from fed3r_app.words import plural
from strategies.absence import Absence
from strategies.accumulator import Accumulator
from strategies.journal import Journal
from strategies.messaging import (
    Traffic,
    is_permanent,
    is_unavailable,
    one_line,
    same_request,
)
from strategies.registry import ClientRegistry
from strategies.sample_counts import check_announced
from strategies.sampling import CohortSampler
from strategies.solver import HeadSolver
from strategies.stopping import undisturbed

STATISTICS = "train.statistics"
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class _Judged(NamedTuple):
    """A contribution that waits for others to be compared with."""

    contribution: Contribution
    entry: LedgerEntry
    record: ArrayRecord


@dataclass(eq=False)
class Fed3R(Strategy):
    """Adds up the clients' statistics and solves a head, W = (A + lam I)^-1 b.

    A Flower strategy whose training round is an exchange of statistics. Replies are
    folded into the sum as they arrive, and dropped. The "model" that ``start`` returns
    is the classifier's record, solved when an evaluation is due.

    Parameters
    ----------
    registry : ClientRegistry
        The clients and their nodes.
    sampler : CohortSampler
        Samples the clients of each round.
    accumulator : Accumulator
        The sum, and who is in it.
    solver : HeadSolver
        Solves the classifiers; by default ridge regression with lambda "auto".
    journal : Journal or None
        Where each reply is written down before it is counted.
    traffic : Traffic
        Adds up the bytes that travel.
    eval_every : int
        Rounds between evaluations; 0 means at the end only.
    first_round : int
        Number of the first round, for a run that is resumed.
    parity : ParityCheck or None
        Refuses clients that see a built-in picture otherwise than the server does.
    newcomers : callable
        Returns clients that have come since, or have come back as another node.
    max_unreadable : float
        Share of a client's images that its contribution may lack.
    """

    registry: ClientRegistry
    sampler: CohortSampler
    accumulator: Accumulator
    _: KW_ONLY
    solver: HeadSolver = field(default_factory=HeadSolver)
    journal: Journal | None = None
    traffic: Traffic = field(default_factory=Traffic)
    eval_every: int = 1
    first_round: int = 1
    parity: ParityCheck | None = None
    newcomers: Callable[[], Iterable[str]] = tuple
    max_unreadable: float = 0.0
    _progress: Progress = field(
        default_factory=lambda: Progress("clients counted"), init=False
    )
    _cohort: list[str] = field(default_factory=list, init=False)
    _asked: list[str] = field(default_factory=list, init=False)
    _absence: Absence = field(init=False)
    _judged: dict[str, _Judged] = field(default_factory=dict, init=False)
    _reported: Traffic = field(default_factory=Traffic, init=False)

    def __post_init__(self) -> None:
        self._absence = Absence(self.registry, self._admit_newcomers)

    def classifier(self) -> Classifier:
        """Return the classifier of the sum so far, releasing it."""
        stats, last = self.accumulator.release(), self.sampler.done
        return self.solver.solve(stats, last=last, noise_lambda=self._noise_lambda)

    def penalty(self) -> float:
        """Return the last classifier's lambda, or what it would be for one that has it.

        Called after the last classifier.
        """
        if self.solver.ridge_lambda is not None:
            return self.solver.ridge_lambda
        stats = self.accumulator.release()
        noise_lambda = self._noise_lambda
        return self.solver.choose_lambda(stats, last=True, noise_lambda=noise_lambda)

    @property
    def _noise_lambda(self) -> float | None:
        """The penalty that goes with the noise of the sum, once it is released."""
        noise = self.accumulator.noise
        return noise.lam if noise else None

    def evaluation_due(self, number: int) -> bool:
        """Return whether a round's classifier is to be evaluated."""
        if not self.accumulator.n:
            return False
        every = self.eval_every
        return self.sampler.done or (every > 0 and number % every == 0)

    def summary(self) -> None:
        """Log what is about to happen."""
        sampler, name = self.sampler, type(self).__name__
        counted = f", {len(sampler.counted)} already counted" if sampler.counted else ""
        clients = plural(len(sampler.clients), "client")
        log(INFO, "%s: one exchange with %s%s", name, clients, counted)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield the request for this round's clients, those whose nodes are there."""
        self._cohort = self.sampler.draw()
        self._asked = self._absence.present(grid, self._cohort)
        for client in self._cohort:
            if client not in self._asked:
                self._excuse(client, "its node is not connected")
        content = RecordDict({"arrays": arrays, "config": config})
        nodes = [self.registry.nodes[client] for client in self._asked]
        return same_request(nodes, content, STATISTICS, self.traffic)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Fold the replies into the sum as they come; return the round's metrics."""
        clients = {self.registry.nodes[client]: client for client in self._asked}
        silent = set(self._asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            client = clients.get(node) or self.registry.client_of(node)
            if client is not None:
                silent.discard(client)
                self._fold(client, reply)
            self._progress(len(self.sampler.counted), len(self.sampler.clients))
        self._admit()
        for client in sorted(silent):
            log(WARNING, "Client %s did not reply", client)
        self._close_round(silent)
        return None, self.round_metrics()

    def _close_round(self, silent: Iterable[str]) -> None:
        """End a round; who kept silent is given up where the others are enough."""
        for client in silent:
            reason, enough = self.sampler.failures[client], self.sampler.is_enough
            self.sampler.fail(client, reason, permanent=enough)
        self.sampler.close_round(self._cohort)

    def round_metrics(self) -> MetricRecord:
        """Return the metrics of the last round."""
        up, down = self.traffic.since(self._reported)
        self._reported = self.traffic.copy()
        counted = len(self.sampler.counted)
        metrics = MetricRecord({"clients-counted": counted})
        metrics["upload-bytes"], metrics["download-bytes"] = up, down
        if self.accumulator.num_examples is not None:
            metrics["num-examples"] = self.accumulator.num_examples
        return metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: see ``strategies.client_evaluation``."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return no metrics: see ``strategies.client_evaluation``."""
        return None

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> MetricRecord:
        """Ask this round's clients and fold their replies; return the metrics."""
        self._absence.timeout = timeout
        requests = self.configure_train(server_round, arrays, config, grid)
        replies = self.registry.stream_replies(grid, requests, timeout)
        return self.aggregate_train(server_round, replies)[1]

    def rounds(
        self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> Iterator[tuple[int, MetricRecord]]:
        """Run rounds until every client is counted or given up; yield their metrics.

        Then newcomers are looked for, and asked too.
        """
        self.summary()
        number = self.first_round
        with self._progress as progress:
            progress(len(self.sampler.counted), len(self.sampler.clients))
            while not self.sampler.done or self._admit_newcomers():
                yield number, self.train_round(number, arrays, config, grid, timeout)
                number += 1

    def _admit_newcomers(self) -> list[str]:
        """Return the clients that have come since and are to be asked."""
        if self.accumulator.is_released or self.sampler.out_of_rounds:
            return []
        joined = [*self.newcomers()]
        for client in joined:
            self.sampler.add(client)
        return [] if self.sampler.done else joined

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run rounds until every client is counted or given up; return the classifier.

        Flower's own ``start`` runs a number of rounds given in advance; here it depends
        on who fails. ``num_rounds`` is not used.
        """
        result, config = Result(arrays=initial_arrays), train_config or ConfigRecord()
        number = self.first_round - 1
        for number, metrics in self.rounds(grid, initial_arrays, config, timeout):
            result.train_metrics_clientapp[number] = metrics
            if self.evaluation_due(number):
                self._evaluate(number, result, evaluate_fn)
        if number < self.first_round and self.accumulator.n:  # no client left to ask
            self._evaluate(number, result, evaluate_fn)
        return result

    def _evaluate(
        self, number: int, result: Result, evaluate_fn: EvaluateFn | None
    ) -> None:
        result.arrays = pack_classifier(self.classifier())
        evaluation = evaluate_fn(number, result.arrays) if evaluate_fn else None
        if evaluation is not None:
            result.evaluate_metrics_serverapp[number] = evaluation

    def _fold(self, client: str, reply: Message) -> None:
        """Add a client's statistics to the sum, once."""
        if reply.has_error():
            self._take_error(client, reply)
            return
        self.traffic.up += count_bytes(reply.content)
        if not self._sees_the_same(client, reply):
            return
        digest = ""
        try:
            digest = read_digest(reply.content)
            counts = read_image_counts(reply.content)
            record = reply.content.array_records.get("arrays", ArrayRecord())
            contribution = self.accumulator.unpack(record)
            announced = self.registry.num_samples.get(client)
            check_announced(announced, contribution.n, counts, self.max_unreadable)
        except ValueError as error:
            reason = f"its statistics were refused: {error}"
            self._fail(client, reason, outcome=REFUSED, digest=digest)
            return
        if client in self._judged:
            self._admit()
        if client in self.accumulator.contributions:
            self._skip_repeated(client, digest)
            return
        entry = LedgerEntry(client, ACCEPTED, digest, contribution.n)
        said = {name: value for name, value in counts._asdict().items() if value}
        self._judged[client] = _Judged(contribution, replace(entry, **said), record)
        scale = self.accumulator.scale
        if scale is None or scale.can_judge(len(self._judged)):
            self._admit()

    def _admit(self) -> None:
        """Add the contributions that are waiting, but those of features too large."""
        judged, self._judged = self._judged, {}
        scale, refusals = self.accumulator.scale, dict[str, str]()
        if scale and judged:
            refusals = scale.refusals({k: each[0] for k, each in judged.items()})
        for client, (contribution, entry, record) in judged.items():
            if client in refusals:
                reason = f"its statistics were refused: {refusals[client]}"
                self._fail(client, reason, outcome=REFUSED, digest=entry.digest)
                continue
            with undisturbed():
                self._record(entry, record, contribution)
                self.accumulator.add(contribution, {client: entry.digest})
                self.sampler.count(client)

    def _skip_repeated(self, client: str, digest: str) -> None:
        """Record another reply of a client that is in the sum: it is added once."""
        if self.accumulator.contributions[client] == digest:
            self._record(LedgerEntry(client, REPEATED, digest))
            return
        reason = "another contribution of this client is in the statistics"
        log(WARNING, "A reply of client %s is refused: %s", client, reason)
        self._record(LedgerEntry(client, REFUSED, digest, reason=reason))

    def _sees_the_same(self, client: str, reply: Message) -> bool:
        """Return whether a client sees the built-in picture as the server does."""
        config = reply.content.config_records.get("config", ConfigRecord())
        try:
            if self.parity:
                self.parity.check(read_parity(config))
        except RecordError as error:
            self._fail(client, str(error), outcome=REFUSED, permanent=True)
            return False
        return True

    def _take_error(self, client: str, reply: Message) -> None:
        """Record an error reply; that of a node that is gone is not the client's."""
        reason = reply.error.reason
        if is_unavailable(reply) and client not in self.accumulator.contributions:
            self._absence.begin(client)
            self._excuse(client, one_line(reason))
        else:
            self._absence.end(client)
            self._fail(client, reason, permanent=is_permanent(reply))

    def _excuse(self, client: str, reason: str) -> None:
        """Ask a client whose node is gone once it is back, unless it took too long."""
        if self._absence.is_over(client):
            self._fail(client, f"{reason}, and was not for long", permanent=True)
        else:
            self.sampler.refund_attempt(client, reason)

    def _fail(
        self,
        client: str,
        words: str | None,
        *,
        outcome: str = FAILED,
        digest: str = "",
        permanent: bool = False,
    ) -> None:
        """Record a reply that can't be counted; unless it is permanent, ask again."""
        reason = one_line(words)
        log(WARNING, "Client %s failed: %s", client, reason)
        self._record(LedgerEntry(client, outcome, digest, reason=reason))
        if client not in self.accumulator.contributions:
            self.sampler.fail(client, reason, permanent=permanent)

    def _record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None = None,
        contribution: Contribution | None = None,
    ) -> None:
        if self.journal:
            self.journal.record(entry, record, contribution)


@dataclass(eq=False)
class FedNCM(Fed3R):
    """Fed3R with class means, the nearest-class-mean classifier, as its head."""

    solver: HeadSolver = field(default_factory=lambda: HeadSolver("class-means"))
