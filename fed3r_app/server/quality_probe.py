"""The quality probe: Fed3R once more, on the features of a fine-tuned backbone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from logging import INFO

from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.core.costs import (
    backbone_download_bytes,
    statistics_flops,
    statistics_upload_bytes,
)
from fed3r_app.errors import RunError
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.recorder import Recorder
from fed3r_app.server.context import RunContext
from fed3r_app.server.factory import make_strategy
from fed3r_app.server.fine_tuning_phase import FineTuningPhase
from fed3r_app.wire import pack_arrays, pack_feature_map, unpack_classifier
from strategies import ClientRegistry, CohortSampler, Fed3R


@dataclass(frozen=True, eq=False)
class Probed:
    """The ridge classifier of the fine-tuned features, and what it is worth."""

    W: Tensor
    present: Tensor
    feature_map: FeatureMap
    ridge_lambda: float | None
    accuracy: float | None

    def model(self, tuned: SavedModel) -> SavedModel:
        """Return a fine-tuned model with this classifier in the place of its own."""
        return replace(
            tuned,
            W=self.W,
            present=self.present,
            feature_map=self.feature_map,
            ridge_lambda=self.ridge_lambda,
        )


def probe(
    context: RunContext,
    grid: Grid,
    registry: ClientRegistry,
    tuning: FineTuningPhase,
    recorder: Recorder,
) -> Probed:
    """Return Fed3R's classifier of the backbone as it is now."""
    log(INFO, "Probe: Fed3R on the fine-tuned backbone")
    config = context.config
    feature_map = FeatureMap(context.backbone.dim, intercept=config.fit_intercept)
    sampler = CohortSampler(
        registry.clients,
        per_round=config.per_round,
        seed=config.seed,
        max_retries=config.max_retries,
    )
    start = RidgeStatistics.zeros(feature_map.dim, context.num_classes, context.device)
    strategy = make_strategy(context, registry, sampler, feature_map, start)
    find_newcomers = partial(context.admit_newcomers, recorder, only=tuning.clients)
    strategy.find_newcomers = find_newcomers
    result = strategy.start(
        grid,
        pack_arrays(tuning.backbone_arrays()),
        timeout=config.round_timeout,
        train_config=context.request(pack_feature_map(feature_map)),
    )
    _add_costs(recorder, context, strategy)
    missing = [client for client in tuning.clients if client not in sampler.counted]
    if len(sampler.counted) < (config.min_clients or len(tuning.clients)):
        raise RunError(
            f"The probe counted {len(sampler.counted)} of {len(tuning.clients)} "
            f"clients; missing: {', '.join(missing[:10])}."
        )
    W, present = unpack_classifier(result.arrays.to_numpy_ndarrays())
    evaluation_set = context.evaluation_set(feature_map, tuning.test_features())
    accuracy = evaluation_set.accuracy(W, present) if evaluation_set else None
    return Probed(W, present, feature_map, strategy.ridge_lambda, accuracy)


def _add_costs(recorder: Recorder, context: RunContext, strategy: Fed3R) -> None:
    """Add what the probe sent and computed to the run's costs."""
    stats = strategy.statistics()
    shape, counted = (stats.d, stats.num_classes), len(strategy.sampler.counted)
    backbone = sum(value.numel() for value in context.backbone.module.parameters())
    recorder.add_costs(
        up=strategy.upload_bytes,
        down=strategy.download_bytes,
        paper_up=statistics_upload_bytes(*shape, counted),
        paper_down=backbone_download_bytes(backbone, counted),
        flops=statistics_flops(stats.n, *shape, context.forward_flops),
    )
