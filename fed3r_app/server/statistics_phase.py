"""The closed form: statistics from every client, a classifier from their sum."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from logging import WARNING

from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from torch import Tensor

from fed3r_app.config import SECAGG
from fed3r_app.core import (
    HEADS,
    Classifier,
    FeatureMap,
    LeaveOneOut,
    Metrics,
    RidgeStatistics,
)
from fed3r_app.core.names import METHODS
from fed3r_app.errors import RunError
from fed3r_app.evaluation import EvaluationSet, compare_heads
from fed3r_app.privacy import DISTRIBUTED
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.snapshots import Setting, Snapshot, check_settings
from fed3r_app.server.context import RunContext
from fed3r_app.server.cost_meter import StatisticsCosts
from fed3r_app.server.discovery_phase import admit_newcomers
from fed3r_app.server.factory import (
    choose_feature_map,
    fixed_point_encoding,
    make_accumulator,
    make_sampler,
    make_strategy,
)
from fed3r_app.server.journal import RunJournal
from fed3r_app.wire import pack_feature_map
from fed3r_app.words import first_names, plural, run_again
from strategies import CohortSampler, Fed3R, Traffic


@dataclass(frozen=True, eq=False)
class Solution:
    """A classifier in closed form, and what it is made of.

    ``heads`` has the accuracy of each method with the same statistics.
    """

    classifier: Classifier
    feature_map: FeatureMap
    statistics: RidgeStatistics
    ridge_lambda: float | None
    metrics: Metrics | None
    head: str = "ridge"  # name in ``fed3r_app.core.HEADS``
    heads: dict[str, float] = field(default_factory=dict)

    def leave_one_out(self) -> LeaveOneOut | None:
        """Return how its training images are left out of it, where it is ridge."""
        if not HEADS[self.head].is_ridge or self.ridge_lambda is None:
            return None
        W = self.classifier.W
        return LeaveOneOut.of(self.statistics, W, self.ridge_lambda)

    def model(
        self, context: RunContext, backbone_arrays: dict[str, Tensor] | None = None
    ) -> SavedModel:
        """Return the classifier with all that is needed to use it."""
        return context.saved_model(
            self.classifier, self.feature_map, self.ridge_lambda, backbone_arrays
        )


@dataclass(eq=False)
class StatisticsPhase:
    """One exchange of statistics with every client.

    Parameters
    ----------
    feature_map : FeatureMap
        From backbone features to those of the statistics.
    strategy : Fed3R
        Asks the clients and adds up their replies.
    journal : RunJournal
        Writes the replies down, and saves the sum.
    final : bool
        Whether to ask no client and solve what was counted: a fine-tuning that has
        begun must not start from elsewhere.
    """

    context: RunContext
    feature_map: FeatureMap
    strategy: Fed3R
    journal: RunJournal
    test_set: EvaluationSet | None
    final: bool = False
    _evaluated: tuple[Classifier, Metrics | None] | None = None

    @classmethod
    def prepare(
        cls, context: RunContext, earlier: Snapshot | None, *, final: bool = False
    ) -> StatisticsPhase:
        """Return the phase, ready to begin or to be resumed from a snapshot."""
        feature_map = choose_feature_map(context, earlier)
        settings = _statistics_fingerprint(context, feature_map)
        if earlier:
            check_settings(earlier.settings, settings)
        rounds = context.recorder.rounds
        counted = earlier.contributions if earlier else {}
        sampler = make_sampler(context, counted, rounds if earlier else 0)
        if final:
            sampler.close()
        accumulator = make_accumulator(context, feature_map, earlier)
        traffic, head = Traffic(), METHODS[context.config.method].head
        costs = StatisticsCosts(context, accumulator, traffic, head)
        journal = RunJournal(context, accumulator, settings, costs)
        interval = context.config.evaluation_interval
        strategy = make_strategy(
            context,
            sampler,
            accumulator,
            head,
            journal=journal,
            traffic=traffic,
            eval_every=interval(sampler.rounds_ahead, feature_map.dim),
            first_round=rounds + 1,
            parity=context.parity,
            newcomers=tuple if final else partial(admit_newcomers, context),
        )
        test = context.evaluation_set(feature_map)
        return cls(context, feature_map, strategy, journal, test, final)

    @property
    def sampler(self) -> CohortSampler:
        """Who is counted, and who is not."""
        return self.strategy.sampler

    def collect(self) -> None:
        """Ask the clients until each is counted or given up."""
        context, strategy = self.context, self.strategy
        request = context.request(pack_feature_map(self.feature_map))
        timeout = context.config.round_timeout
        rounds = strategy.rounds(context.grid, ArrayRecord(), request, timeout)
        try:
            for number, metrics in rounds:
                due = strategy.evaluation_due(number)
                self._end_round(metrics, self._evaluate() if due else None)
        finally:
            accumulator = strategy.accumulator
            releasable = accumulator.is_releasable and not self.final
            if releasable and accumulator.contributions:
                self.journal.save()

    def solve(self) -> Solution | None:
        """Return the classifier of all statistics; None if no client was counted."""
        accumulator, counted = self.strategy.accumulator, len(self.sampler.counted)
        if not counted:
            return None
        if not accumulator.n:
            raise RunError(
                f"The {counted} counted clients have no images: there is nothing to "
                "solve."
            )
        if self._evaluated is None:  # no round was left to run
            self._evaluate()
        assert self._evaluated is not None
        classifier, metrics = self._evaluated
        stats = accumulator.release()
        # With differential privacy the number of samples is known only now.
        self.journal.costs.count_samples(stats.n)
        strategy, config = self.strategy, self.context.config
        return Solution(
            classifier,
            self.feature_map,
            stats,
            strategy.solver.ridge_lambda,
            metrics,
            strategy.solver.head,
            compare_heads(config, stats, strategy.penalty, self.test_set),
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients not counted: of this part, and of those known from earlier ones."""
        here, gone = self.sampler.missing, self.context.state.expected
        return (*here, *sorted(gone - self.sampler.counted - set(here)))

    def shortfall(self) -> str | None:
        """Return the error sentence if too few clients were counted, else None."""
        if self.final:  # they were enough for what has begun
            return None
        sampler, config = self.sampler, self.context.config
        missing, path = self.missing, self.context.directory.path
        num_clients = len(sampler.counted) + len(missing)
        # After statistics-rounds any coverage will do, unless min-clients is set.
        wanted = 1 if sampler.out_of_rounds else num_clients
        if len(sampler.counted) >= (config.min_clients or wanted):
            return None
        named = first_names(missing, 10)
        reason = sampler.failures.get(missing[0], "not asked").rstrip(".")
        begun = f"What was counted is in {path}. To ask the others, "
        begun = begun if sampler.counted else "To ask again, "
        next_step = f"{begun}{run_again(path.name)}."
        if config.dp_epsilon:
            next_step = "Nothing was released of them: no privacy is spent. Run again."
        if config.dp_mode == DISTRIBUTED:
            next_step = (
                "The server has seen noisy sums of those counted: another run would "
                "spend their privacy budget again. min-clients accepts fewer."
            )
        verb = "was" if num_clients == 1 else "were"
        return (
            f"{len(sampler.counted)} of {plural(num_clients, 'client')} {verb} "
            f"counted; missing: {named}. Client {missing[0]}: {reason}. {next_step}"
        )

    def _evaluate(self) -> dict[str, object]:
        """Solve and evaluate the statistics so far; return the round's values."""
        shortfall = self.shortfall() if self.context.config.dp_epsilon else None
        if shortfall:  # a release can't be made twice
            raise RunError(shortfall)
        classifier = self.strategy.classifier()
        metrics = self.test_set.evaluate(classifier) if self.test_set else None
        self._evaluated = classifier, metrics
        values: dict[str, object] = dict(metrics.values()) if metrics else {}
        if self.strategy.solver.ridge_lambda is not None:
            values["ridge_lambda"] = self.strategy.solver.ridge_lambda
        return values

    def _end_round(
        self, metrics: MetricRecord, evaluation: dict[str, object] | None
    ) -> None:
        context, known = self.context, self.sampler.clients
        clients = context.state.expected.union(context.registry.clients, known)
        context.recorder.set_clients(len(clients))
        self.journal.costs.count()
        values = {"clients_counted": metrics["clients-counted"], **(evaluation or {})}
        if "num-examples" in metrics:  # not with differential privacy
            values["num_samples"] = metrics["num-examples"]
        self.context.recorder.end_round(values, log_it=evaluation is not None)
        # A client that has helped to unmask a sum does so once: each round is saved.
        self.journal.save_if_due(at_once=self.context.config.privacy == SECAGG)


def absent_classes(names: tuple[str, ...], stats: RidgeStatistics) -> list[str]:
    """Return the classes that no counted client has, with a warning."""
    absent = [names[c] for c in (stats.counts == 0).nonzero().flatten().tolist()]
    if absent:
        named = first_names(absent, 10)
        said = "Never predicted, for want of images: %s (%s)"
        log(WARNING, said, plural(len(absent), "class"), named)
    return absent


def _statistics_fingerprint(
    context: RunContext, feature_map: FeatureMap
) -> dict[str, Setting]:
    """Return what must not change between the parts of a run."""
    registry, state = context.registry, context.state
    clients = {*registry.clients, *state.expected, *state.forgotten}
    encoding = fixed_point_encoding(context, feature_map)
    return {
        **context.feature_fingerprint(),
        "dp-epsilon": context.config.dp_epsilon,
        # A data set is split into so many parts; nodes have their own images.
        "clients": None
        if context.data.is_local
        else registry.num_partitions or len(clients),
        **asdict(feature_map),
        **({"privacy": SECAGG, "secagg-grid-bits": encoding.bits} if encoding else {}),
    }
