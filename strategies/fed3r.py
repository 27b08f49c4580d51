"""Fed3R: one exchange of statistics with each client, a classifier in closed form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fed3r_app.core import (
    Limits,
    RidgeStatistics,
    RunningSum,
    solve_ridge,
)
from fed3r_app.runs.ledger import ACCEPTED, FAILED, REFUSED, REPEATED, LedgerEntry
from fed3r_app.wire import (
    count_bytes,
    pack_classifier,
    read_digest,
    unpack_contribution,
)
from strategies.client_evaluation import EVALUATION, add_evaluations
from strategies.discovery import ClientRegistry
from strategies.messaging import printable, stream_replies
from strategies.penalty import PenaltySchedule
from strategies.release import Release
from strategies.sampling import CohortSampler

STATISTICS = "train.statistics"
_PROGRESS_SECONDS = 5.0
OnRound = Callable[[int, MetricRecord, MetricRecord | None], None]
OnReply = Callable[[LedgerEntry, ArrayRecord | None], None]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Fed3R(Strategy):
    """Adds up the clients' statistics and solves W = (A + lam I)^-1 b.

    A Flower strategy whose training round is an exchange of statistics. Replies are
    folded into the sum as they arrive, and dropped. The "model" it returns is the
    classifier's record, solved when an evaluation is due.

    Parameters
    ----------
    registry : ClientRegistry
        The clients and their nodes.
    sampler : CohortSampler
        Who is asked when.
    start : RidgeStatistics
        What was counted before; zeros for a new run. Fixes d, C and the device.
    ridge_lambda : float or None
        None chooses it by generalised cross-validation.
    normalize, intercept : bool
        See ``solve_ridge``.
    eval_every : int
        Rounds between evaluations; 0 means at the end only.
    first_round : int
        Number of the first round, for a run that goes on.
    limits : Limits
        What is known of the clients' samples: statistics of others are refused.
    contributions : mapping
        Digest of each client's contribution that is in ``start``.
    release : Release or None
        Makes the sum differentially private, once, after the last round; nothing else
        of it is told. None solves the sum as it is.

    Attributes
    ----------
    ridge_lambda : float or None
        The penalty of the last solution; None before the first.
    rounds_run : int
        Rounds so far.
    upload_bytes, download_bytes : int
        Bytes of all replies and requests so far.
    on_round : callable or None
        Called after each round with its number, its metrics and its evaluation.
    on_reply : callable or None
        Called with what becomes of a reply, and its record if that is to be counted,
        before it is. What it raises ends the run, and the sum does not change.
    find_newcomers : callable or None
        Returns clients to ask that were not there before; called when all others have
        been asked.
    """

    def __init__(
        self,
        registry: ClientRegistry,
        sampler: CohortSampler,
        start: RidgeStatistics,
        *,
        ridge_lambda: float | None = None,
        normalize: bool = True,
        intercept: bool = False,
        eval_every: int = 1,
        first_round: int = 1,
        limits: Limits | None = None,
        contributions: Mapping[str, str] | None = None,
        release: Release | None = None,
    ) -> None:
        self.registry = registry
        self.sampler = sampler
        self.ridge_lambda: float | None = None
        self.rounds_run = 0
        self.upload_bytes = self.download_bytes = 0
        self._penalty = PenaltySchedule(ridge_lambda, release)
        self._normalize = normalize
        self._intercept = intercept
        self._eval_every = eval_every
        self._first_round = first_round
        self.contributions = dict(contributions or {})
        self.on_round: OnRound | None = None
        self.on_reply: OnReply | None = None
        self.find_newcomers: Callable[[], Iterable[str]] | None = None
        self._sum = RunningSum(start)
        self._is_changing = False
        self._space = (start.d, start.num_classes)
        self._limits = limits or Limits()
        self._release = release
        self._released: RidgeStatistics | None = None
        self._cohort: list[str] = []
        self._reported_up = self._reported_down = 0

    def solve(self, stats: RidgeStatistics) -> Tensor:
        """Return the classifier W (d, C) of the statistics."""
        lam = self._penalty.choose(stats, last=self.sampler.done)
        self.ridge_lambda = lam
        return solve_ridge(stats, lam, self._normalize, self._intercept)

    @property
    def is_releasable(self) -> bool:
        """Whether ``statistics`` are whole, and cost no privacy budget."""
        is_free = self._release is None or self._released is not None
        return is_free and not self._is_changing

    def statistics(self) -> RidgeStatistics:
        """Return the sum so far; with differential privacy, its only release."""
        if self._released is not None:
            return self._released
        with self.changing_sum():
            stats = self._sum.value()
        if self._release is None:
            return stats
        self._released = self._release(stats)
        return self._released

    @contextmanager
    def changing_sum(self) -> Iterator[None]:
        """Change the sum, and who is in it, as a whole or not at all.

        A signal may end the process between any two steps. What is left half-done then
        is not to be saved: the last snapshot is whole.
        """
        self._is_changing = True
        yield
        self._is_changing = False

    def classifier(self) -> ArrayRecord:
        """Return the record of the classifier of the sum so far."""
        stats = self.statistics()
        return pack_classifier(self.solve(stats), stats.counts > 0)

    def summary(self) -> None:
        """Log what is about to happen."""
        log(
            INFO,
            "%s: %d clients, %d already counted",
            type(self).__name__,
            len(self.sampler.clients),
            len(self.sampler.counted),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield the request for this round's clients."""
        self._cohort = self.sampler.draw()
        return self._requests(self._cohort, STATISTICS, arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Fold the replies into the sum as they come; return what came."""
        clients = {self.registry.nodes[client]: client for client in self._cohort}
        silent = set(self._cohort)
        last_progress = time.monotonic()
        for reply in replies:
            node = reply.metadata.src_node_id
            client = clients.get(node) or self.registry.client_of(node)
            if client is not None:
                silent.discard(client)
                self._fold(client, reply)
            if time.monotonic() - last_progress > _PROGRESS_SECONDS:
                last_progress = time.monotonic()
                self._log_progress(server_round)
        for client in sorted(silent):
            log(WARNING, "Client %s did not reply", client)
        self.sampler.close_round(self._cohort)
        return None, self.round_metrics()

    @property
    def num_examples(self) -> int | None:
        """How many samples are counted; None where that must not be told."""
        return self._sum.n if self._release is None else None

    def round_metrics(self) -> MetricRecord:
        """Return what a round came to."""
        metrics = MetricRecord(
            {
                "clients-counted": len(self.sampler.counted),
                "upload-bytes": self.upload_bytes - self._reported_up,
                "download-bytes": self._take_download_bytes(),
            }
        )
        self._reported_up = self.upload_bytes
        if self.num_examples is not None:
            metrics["num-examples"] = self.num_examples
        return metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Yield the classifier for every client, to try on its own images."""
        return self._requests(self.registry.clients, EVALUATION, arrays, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the counts added up over clients; they are never averaged."""
        metrics, down = add_evaluations(replies), self._take_download_bytes()
        if metrics is not None:
            metrics["download-bytes"] = down
        return metrics

    def train_round(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        timeout: float,
    ) -> MetricRecord:
        """Ask this round's clients and fold what they reply; return what came."""
        requests = self.configure_train(server_round, arrays, config, grid)
        in_flight = self.registry.in_flight
        replies = stream_replies(grid, requests, timeout=timeout, in_flight=in_flight)
        return self.aggregate_train(server_round, replies)[1]

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
        """Run rounds until everybody is counted or given up; return the classifier.

        Flower's own ``start`` runs a number of rounds known beforehand; here it depends
        on who fails. ``num_rounds`` is not used.
        """
        self.summary()
        train_config = train_config or ConfigRecord()
        result, number = Result(arrays=initial_arrays), self._first_round
        while self._clients_left():
            metrics = self.train_round(
                number, initial_arrays, train_config, grid, timeout
            )
            result.train_metrics_clientapp[number] = metrics
            if self._evaluation_due(number):
                self._evaluate(number, result, evaluate_fn)
            if self.on_round:
                evaluation = result.evaluate_metrics_serverapp.get(number)
                self.on_round(number, metrics, evaluation)
            number, self.rounds_run = number + 1, self.rounds_run + 1
        if not self.rounds_run and self._sum.n:  # nobody was left to ask
            self._evaluate(number - 1, result, evaluate_fn)
        return result

    def _evaluate(
        self, number: int, result: Result, evaluate_fn: EvaluateFn | None
    ) -> None:
        """Solve, and note what the classifier is worth."""
        result.arrays = self.classifier()
        evaluation = evaluate_fn(number, result.arrays) if evaluate_fn else None
        if evaluation is not None:
            result.evaluate_metrics_serverapp[number] = evaluation

    def _clients_left(self) -> bool:
        """Return whether somebody is left to ask, or has just come."""
        sampler = self.sampler
        if self._released is not None:  # nobody comes in after the only release
            return False
        if sampler.done and not sampler.out_of_rounds and self.find_newcomers:
            for client in self.find_newcomers():
                sampler.add(client)
        return not sampler.done

    def _evaluation_due(self, number: int) -> bool:
        if not self._sum.n:
            return False
        every = self._eval_every
        return self.sampler.done or (every > 0 and number % every == 0)

    def _requests(
        self,
        clients: Iterable[str],
        message_type: str,
        arrays: ArrayRecord,
        config: ConfigRecord,
    ) -> Iterator[Message]:
        content = RecordDict({"arrays": arrays, "config": config})
        size = count_bytes(content)
        for client in clients:
            self.download_bytes += size
            yield Message(
                content,
                dst_node_id=self.registry.nodes[client],
                message_type=message_type,
            )

    def _take_download_bytes(self) -> int:
        """Return the bytes of the requests since the last call."""
        before, self._reported_down = self._reported_down, self.download_bytes
        return self.download_bytes - before

    def _fold(self, client: str, reply: Message) -> None:
        """Add a client's statistics to the sum, once."""
        if reply.has_error():
            self._fail(
                LedgerEntry(client, FAILED, reason=printable(reply.error.reason))
            )
            return
        self.upload_bytes += count_bytes(reply.content)
        digest = ""
        try:
            digest = read_digest(reply.content)
            record = reply.content.array_records.get("arrays", ArrayRecord())
            contribution = unpack_contribution(record, self._space, self._limits)
        except ValueError as error:
            reason = printable(f"its statistics were refused: {error}")
            self._fail(LedgerEntry(client, REFUSED, digest, reason=reason))
            return
        if client in self.contributions:
            self._skip_repeated(client, digest)
            return
        self._note(LedgerEntry(client, ACCEPTED, digest, contribution.n), record)
        with self.changing_sum():
            self._sum.add(contribution)
            self.contributions[client] = digest
            self.sampler.count(client)

    def _skip_repeated(self, client: str, digest: str) -> None:
        """Note a reply of a client that is counted: nobody is counted twice."""
        if self.contributions[client] == digest:
            self._note(LedgerEntry(client, REPEATED, digest))
            return
        reason = "another contribution of this client is in the sums"
        log(WARNING, "A reply of client %s is refused: %s", client, reason)
        self._note(LedgerEntry(client, REFUSED, digest, reason=reason))

    def _fail(self, entry: LedgerEntry) -> None:
        """Note a reply that can't be counted; its client will be asked again."""
        log(WARNING, "Client %s failed: %s", entry.client, entry.reason)
        self._note(entry)
        if entry.client not in self.contributions:
            self.sampler.fail(entry.client, entry.reason)

    def _note(self, entry: LedgerEntry, record: ArrayRecord | None = None) -> None:
        if self.on_reply:
            self.on_reply(entry, record)

    def _log_progress(self, server_round: int) -> None:
        counted, total = len(self.sampler.counted), len(self.sampler.clients)
        log(INFO, "round %d: %d of %d clients counted", server_round, counted, total)
