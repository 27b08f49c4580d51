"""The closed-form phase: statistics from every client, a classifier from their sum."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from logging import WARNING

from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.config import SECAGG, WITH_REPLACEMENT
from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.errors import RunError
from fed3r_app.evaluation import EvaluationSet
from fed3r_app.privacy import DISTRIBUTED
from fed3r_app.privacy.gaussian import PrivacyBudget
from fed3r_app.privacy.release import CentralRelease, DistributedRelease
from fed3r_app.privacy.secagg import SMALLEST_GROUP
from fed3r_app.runs.ledger import FAILED, LedgerEntry
from fed3r_app.runs.recorder import Recorder
from fed3r_app.runs.snapshots import Setting, Snapshot, check_settings
from fed3r_app.runs.state import RunState
from fed3r_app.server.context import RunContext
from fed3r_app.server.cost_meter import StatisticsCosts
from fed3r_app.server.factory import fixed_point_encoding, make_strategy
from fed3r_app.wire import pack_feature_map, unpack_classifier
from strategies import (
    ClientRegistry,
    CohortSampler,
    GroupSampler,
    natural_key,
)

# Saving may take this share of the time, and does not happen more often than that.
_SNAPSHOT_SHARE, _SNAPSHOT_SECONDS = 0.05, 10.0


@dataclass(frozen=True, eq=False)
class Solution:
    """A classifier in closed form, and what it is made of."""

    arrays: ArrayRecord
    feature_map: FeatureMap
    statistics: RidgeStatistics
    ridge_lambda: float | None
    accuracy: float | None

    @property
    def classifier(self) -> tuple[Tensor, Tensor]:
        """W (d, C) and the classes present (C,)."""
        return unpack_classifier(self.arrays.to_numpy_ndarrays())


class StatisticsPhase:
    """One pass of Fed3R or FedNCM over the clients.

    Parameters
    ----------
    context : RunContext
        The run.
    registry : ClientRegistry
        Its clients.
    feature_map : FeatureMap
        From backbone features to those of the statistics.
    recorder : Recorder
        Where costs and metrics go.
    state : RunState
        Where contributions are written down and the sums saved.
    earlier : Snapshot or None
        What an earlier part of the run counted.
    final : bool
        Whether to ask nobody and solve what was counted: a fine-tuning that has begun
        must not start from elsewhere.
    """

    def __init__(
        self,
        context: RunContext,
        registry: ClientRegistry,
        feature_map: FeatureMap,
        recorder: Recorder,
        state: RunState,
        earlier: Snapshot | None = None,
        *,
        final: bool = False,
    ) -> None:
        self._session = context
        self._final = final
        self._secure = context.config.privacy == SECAGG
        self._map = feature_map
        self._recorder = recorder
        self._state = state
        self._roster = registry
        everybody = {*registry.clients, *state.expected, *state.forgotten}
        self._settings = self._statistics_fingerprint(
            registry.num_partitions or len(everybody)
        )
        if earlier:
            check_settings(earlier.settings, self._settings)
        self.sampler = self._make_sampler(registry, earlier)
        if final:
            self.sampler.close()
        self.release = self._make_release()
        start = self._start(earlier)
        self._strategy = make_strategy(
            context,
            registry,
            self.sampler,
            feature_map,
            start,
            class_means=context.config.method == "fedncm",
            eval_every=context.config.evaluation_interval(
                self.sampler.rounds_ahead, feature_map.dim
            ),
            first_round=recorder.rounds + 1,
            contributions=earlier.contributions if earlier else None,
            release=self.release,
        )
        self._evaluation_set: EvaluationSet | None = context.evaluation_set(feature_map)
        counted = len(self.sampler.counted)
        self._costs = StatisticsCosts(context, feature_map, recorder, counted, start.n)
        self._last_saved, self._save_seconds = time.monotonic(), 0.0
        self._num_saved = counted

    def run(self, grid: Grid) -> Solution | None:
        """Ask the clients; return the classifier, or None if nobody was counted."""
        self._strategy.on_round = self._on_round
        self._strategy.on_reply = self._on_reply
        self._strategy.find_newcomers = None if self._final else self._find_newcomers
        try:
            result = self._strategy.start(
                grid,
                ArrayRecord(),
                timeout=self._session.config.round_timeout,
                train_config=self._session.request(pack_feature_map(self._map)),
                evaluate_fn=self._evaluate,
            )
        finally:
            told = self._strategy.is_releasable and not self._final
            if told and self._strategy.contributions:
                self._save_snapshot()
        if not self.sampler.counted:
            return None
        evaluations = result.evaluate_metrics_serverapp
        if not evaluations:
            raise RunError(
                f"The {len(self.sampler.counted)} counted clients have no images: "
                "there is nothing to solve."
            )
        accuracy = evaluations[max(evaluations)].get("accuracy")
        stats = self._strategy.statistics()
        # With differential privacy the number of samples is known only now.
        self._costs.count_samples(stats.n)
        return Solution(
            arrays=result.arrays,
            feature_map=self._map,
            statistics=stats,
            ridge_lambda=self._strategy.ridge_lambda,
            accuracy=accuracy,  # type: ignore[arg-type]
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients that are not counted: of this part, and of those that were lost."""
        here, gone = self.sampler.missing, self._state.expected
        return (*here, *sorted(gone - self.sampler.counted - set(here)))

    def shortfall(self) -> str | None:
        """Return the sentence of a run that counted too few clients, else None."""
        if self._final:  # they were enough for what has begun
            return None
        sampler, config = self.sampler, self._session.config
        missing, path = self.missing, self._session.directory.path
        num_clients = len(sampler.counted) + len(missing)
        # At the end of statistics-rounds any coverage will do, unless told otherwise.
        wanted = 1 if sampler.out_of_rounds else num_clients
        if len(sampler.counted) >= (config.min_clients or wanted):
            return None
        named = ", ".join(missing[:10]) + (", …" if len(missing) > 10 else "")
        reason = sampler.failures.get(missing[0], "not asked").rstrip(".")
        next_step = (
            f"What was counted is in {path}. To ask the others, run again with "
            f'run-name="{path.name}" resume=true.'
        )
        if self.release:
            next_step = "Nothing was released of them: no privacy is spent. Run again."
        if config.dp_mode == DISTRIBUTED:
            next_step = (
                "The server has seen noisy sums of those counted: another run would "
                "spend their privacy budget again. min-clients accepts fewer."
            )
        return (
            f"{len(sampler.counted)} of {num_clients} clients were counted; "
            f"missing: {named}. Client {missing[0]}: {reason}. {next_step}"
        )

    def _make_release(self) -> CentralRelease | DistributedRelease | None:
        """Return what makes the sums private, where that is asked for."""
        config = self._session.config
        if not config.dp_epsilon:
            return None
        budget = PrivacyBudget(config.dp_epsilon, config.dp_delta)
        if config.dp_mode == DISTRIBUTED:
            return DistributedRelease(budget, self._map.dim, self._check_coverage)
        shape = (self._map.dim, self._session.num_classes)
        return CentralRelease(budget, *shape, self._check_coverage)

    def _check_coverage(self) -> None:
        """Raise unless enough clients are counted: a release can't be made twice."""
        shortfall = self.shortfall()
        if shortfall:
            raise RunError(shortfall)

    def _statistics_fingerprint(self, num_parts: int) -> dict[str, Setting]:
        """Return what must not change between the parts of a run."""
        context = self._session
        return {
            **context.feature_fingerprint(),
            "dp-epsilon": context.config.dp_epsilon,
            # A data set is split into so many parts; nodes have their own.
            "clients": None if context.is_local else num_parts,
            **asdict(self._map),
            **self._secagg_fingerprint(),
        }

    def _secagg_fingerprint(self) -> dict[str, Setting]:
        if not self._secure:
            return {}
        grid = fixed_point_encoding(self._session, self._map)
        return {"privacy": SECAGG, "secagg-grid-bits": grid.bits}

    def _make_sampler(
        self, registry: ClientRegistry, earlier: Snapshot | None
    ) -> CohortSampler:
        config = self._session.config
        counted = earlier.contributions if earlier else {}
        clients = sorted({*registry.clients, *counted}, key=natural_key)
        if self._secure:
            if len(clients) < SMALLEST_GROUP:
                raise ValueError(
                    f"privacy = {SECAGG!r} must be met by {SMALLEST_GROUP} clients or "
                    f"more, got {len(clients)}: a sum over fewer tells of each."
                )
            return GroupSampler(
                clients,
                group_size=config.secagg_group,
                per_round=config.per_round,
                seed=config.seed,
                max_retries=config.max_retries,
                counted=counted,
            )
        return CohortSampler(
            clients,
            per_round=config.per_round,
            seed=config.seed,
            max_retries=config.max_retries,
            with_replacement=config.sampling == WITH_REPLACEMENT,
            max_rounds=config.statistics_rounds,
            counted=counted,
            rounds=self._recorder.rounds if earlier else 0,
        )

    def _start(self, earlier: Snapshot | None) -> RidgeStatistics:
        """Return what the sums start from."""
        device, num_classes = self._session.device, self._session.num_classes
        if earlier:
            names = self._session.class_names
            stats = earlier.relabelled(names).statistics
            if self._secure:
                stats = fixed_point_encoding(self._session, self._map).unscaled(stats)
            return stats.to(device)
        return RidgeStatistics.zeros(self._map.dim, num_classes, device)

    def _evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        """Return Flower's metrics of a classifier: accuracy and lambda."""
        metrics = MetricRecord()
        if self._strategy.ridge_lambda is not None:
            metrics["ridge-lambda"] = self._strategy.ridge_lambda
        if self._evaluation_set:
            W, present = unpack_classifier(arrays.to_numpy_ndarrays())
            metrics["accuracy"] = self._evaluation_set.accuracy(W, present)
        return metrics

    def _on_reply(self, entry: LedgerEntry, record: ArrayRecord | None) -> None:
        self._save_now_and_then()  # a round may be all clients, and take hours
        if self.release:  # nothing that depends on single images is written down
            # The reason of a refusal may quote a sum; an error is a client's own words.
            reason = entry.reason if entry.outcome == FAILED else ""
            entry = replace(entry, digest="", num_samples=None, reason=reason)
            record = None
        self._state.note(entry, record, self._session.class_names)

    def _on_round(
        self, number: int, metrics: MetricRecord, evaluation: MetricRecord | None
    ) -> None:
        self._costs.count(self._strategy)
        evaluated = {k.replace("-", "_"): v for k, v in (evaluation or {}).items()}
        if "num-examples" in metrics:  # not with differential privacy
            evaluated["num_samples"] = metrics["num-examples"]
        counted = metrics["clients-counted"]
        self._recorder.end_round({"clients_counted": counted, **evaluated})
        # Who has helped to unmask a sum does so once: every round of such is kept.
        self._save_now_and_then(at_once=self._secure)

    def _find_newcomers(self) -> list[str]:
        """Return clients that have come since the run began."""
        forgotten, known = self._state.forgotten, self.sampler.clients
        newcomers = self._session.admit_newcomers(self._recorder, forgotten=forgotten)
        everybody = self._state.expected.union(self._roster.clients, known)
        self._recorder.set_clients(len(everybody))
        return newcomers

    def _save_now_and_then(self, *, at_once: bool = False) -> None:
        pause = max(_SNAPSHOT_SECONDS, self._save_seconds / _SNAPSHOT_SHARE)
        changed = len(self._strategy.contributions) > self._num_saved
        due = at_once or time.monotonic() - self._last_saved > pause
        if changed and due and self._strategy.is_releasable:
            try:
                self._save_snapshot()
            except OSError as error:  # perhaps there is room at the end
                log(WARNING, "The sums so far could not be saved: %s", error)
                self._last_saved = time.monotonic()

    def _contributions(self) -> dict[str, str]:
        """Return the digest of each client's contribution, where it may be told."""
        contributions = sorted(self._strategy.contributions.items())
        return {client: "" if self.release else d for client, d in contributions}

    def _save_snapshot(self) -> None:
        """Save the sums so far, with who is in them."""
        began = time.monotonic()
        self._costs.count(self._strategy)
        snapshot = Snapshot(
            self._strategy.statistics(),
            self._contributions(),
            self._settings | ({"dp-sigma": self.release.sigma} if self.release else {}),
            self._recorder.progress(),
            self._session.class_names,
            tuple(sorted(self._state.forgotten)),
        )
        self._state.save(snapshot)
        self._num_saved = len(snapshot.contributions)
        self._last_saved = time.monotonic()
        self._save_seconds = self._last_saved - began


def absent_classes(names: tuple[str, ...], stats: RidgeStatistics) -> list[str]:
    """Return the classes that no counted client has, with a warning."""
    absent = [names[c] for c in (stats.counts == 0).nonzero().flatten().tolist()]
    if absent:
        log(
            WARNING,
            "%d classes have no images and are never predicted: %s",
            len(absent),
            ", ".join(absent[:10]),
        )
    return absent
