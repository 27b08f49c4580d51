"""The quality probe: Fed3R once more, on the features of a fine-tuned backbone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from logging import INFO

from flwr.common.logger import log

from fed3r_app.core import Classifier, FeatureMap, Metrics
from fed3r_app.core.costs import (
    backbone_download_bytes,
    statistics_flops,
    statistics_upload_bytes,
)
from fed3r_app.errors import RunError
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.server.discovery_phase import admit_newcomers
from fed3r_app.server.factory import make_accumulator, make_strategy
from fed3r_app.server.fine_tuning_phase import FineTuningPhase
from fed3r_app.wire import pack_arrays, pack_feature_map
from strategies import CohortSampler, Fed3R


@dataclass(frozen=True, eq=False)
class Probed:
    """The ridge classifier of the fine-tuned features, and what it gets right."""

    classifier: Classifier
    feature_map: FeatureMap
    ridge_lambda: float | None
    metrics: Metrics | None

    def model(self, tuned: SavedModel) -> SavedModel:
        """Return a fine-tuned model with this classifier in the place of its own."""
        return replace(
            tuned,
            classifier=self.classifier,
            feature_map=self.feature_map,
            ridge_lambda=self.ridge_lambda,
        )


def probe(context: RunContext, tuning: FineTuningPhase) -> Probed:
    """Return Fed3R's classifier of the backbone as it is now."""
    log(INFO, "Probe: Fed3R on the fine-tuned backbone")
    config = context.config
    feature_map = FeatureMap(context.backbone.dim, intercept=config.fit_intercept)
    sampler = CohortSampler(
        context.registry.clients,
        per_round=config.per_round,
        seed=config.seed,
        max_retries=config.max_retries,
    )
    strategy = make_strategy(context, sampler, make_accumulator(context, feature_map))
    if sampler.done:  # none of the clients is connected now
        _add_newcomers(context, sampler, tuning)
    for _ in strategy.rounds(
        context.grid,
        pack_arrays(tuning.backbone_arrays()),
        context.request(pack_feature_map(feature_map)),
        config.round_timeout,
    ):
        if sampler.done:
            _add_newcomers(context, sampler, tuning)
    _add_costs(context, strategy)
    missing = [client for client in tuning.clients if client not in sampler.counted]
    if len(sampler.counted) < (config.min_clients or len(tuning.clients)):
        raise RunError(
            f"The probe counted {len(sampler.counted)} of {len(tuning.clients)} "
            f"clients; missing: {', '.join(missing[:10])}."
        )
    classifier = strategy.classifier()
    evaluation_set = context.evaluation_set(feature_map, tuning.test_features())
    metrics = evaluation_set.evaluate(classifier) if evaluation_set else None
    return Probed(classifier, feature_map, strategy.solver.ridge_lambda, metrics)


def _add_newcomers(
    context: RunContext, sampler: CohortSampler, tuning: FineTuningPhase
) -> None:
    for client in admit_newcomers(context, only=tuning.clients):
        sampler.add(client)


def _add_costs(context: RunContext, strategy: Fed3R) -> None:
    """Add what the probe sent and computed to the run's costs."""
    (d, num_classes), n = strategy.accumulator.space, strategy.accumulator.n
    counted = len(strategy.sampler.counted)
    backbone = sum(value.numel() for value in context.backbone.module.parameters())
    context.recorder.add_costs(
        up=strategy.traffic.up,
        down=strategy.traffic.down,
        paper_up=statistics_upload_bytes(d, num_classes, counted),
        paper_down=backbone_download_bytes(backbone, counted),
        flops=statistics_flops(n, d, num_classes, context.forward_flops),
    )
