"""The quality probe: Fed3R once more, on the features of a fine-tuned backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from logging import INFO

from flwr.common.logger import log
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics, select_penalty
from fed3r_app.core.costs import backbone_download_bytes
from fed3r_app.errors import RunError
from fed3r_app.server.context import RunContext
from fed3r_app.server.cost_meter import StatisticsCosts
from fed3r_app.server.discovery_phase import admit_newcomers
from fed3r_app.server.factory import make_accumulator, make_strategy
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.wire import pack_arrays, pack_feature_map
from fed3r_app.words import first_names, plural
from strategies import CohortSampler


class TooFewClients(RunError):
    """A probe that did not count as many clients as it must."""


@dataclass(frozen=True)
class RefitRule:
    """What a refit must be better than.

    Parameters
    ----------
    error : float
        Of ridge regression on the start's features, by cross-validation.
    num_samples : int
        The images that it was computed from.
    """

    error: float
    num_samples: int

    @classmethod
    def of(cls, stats: RidgeStatistics) -> RefitRule:
        """Return the rule of a start with these statistics."""
        return cls(select_penalty(stats).error, stats.n)

    def objection(self, refit: Solution) -> str | None:
        """Return why a refit may not replace the start, None if it may."""
        n = refit.statistics.n
        if n != self.num_samples:
            return (
                f"the new features are of {plural(n, 'image')}, its own of "
                f"{self.num_samples}"
            )
        error = select_penalty(refit.statistics).error
        if error < self.error:
            return None
        return (
            f"by cross-validation the error of the new features is {error:.4g}, not "
            f"below its own of {self.error:.4g}"
        )


def probe(
    context: RunContext,
    clients: Sequence[str],
    backbone_arrays: dict[str, Tensor],
    test_features: Tensor | None,
) -> Solution:
    """Return Fed3R's classifier of the features of a fine-tuned backbone.

    ``clients`` are those that train, ``test_features`` the backbone's features of the
    server's test images.
    """
    log(INFO, "Fed3R on the fine-tuned backbone")
    config = context.config
    feature_map = FeatureMap(context.backbone.dim, intercept=config.fit_intercept)
    sampler = CohortSampler(
        context.registry.clients,
        per_round=config.per_round,
        seed=config.seed,
        max_retries=config.max_retries,
    )
    accumulator = make_accumulator(context, feature_map)
    strategy = make_strategy(
        context,
        sampler,
        accumulator,
        newcomers=partial(admit_newcomers, context, only=clients),
    )
    costs = StatisticsCosts(context, accumulator, strategy.traffic, "ridge")
    arrays = pack_arrays(backbone_arrays)
    request = context.request(pack_feature_map(feature_map))
    for _ in strategy.rounds(context.grid, arrays, request, config.round_timeout):
        pass
    costs.count()
    backbone = sum(value.numel() for value in context.backbone.module.parameters())
    downloads = backbone_download_bytes(backbone, len(sampler.counted))
    context.recorder.add_costs(paper_down=downloads)
    missing = [client for client in clients if client not in sampler.counted]
    if len(sampler.counted) < (config.min_clients or len(clients)):
        raise TooFewClients(
            f"Fed3R on the fine-tuned backbone counted {len(sampler.counted)} of "
            f"{plural(len(clients), 'client')}; missing: {first_names(missing, 10)}."
        )
    classifier = strategy.classifier()
    evaluation_set = context.evaluation_set(feature_map, test_features)
    metrics = evaluation_set.evaluate(classifier) if evaluation_set else None
    stats, ridge_lambda = accumulator.release(), strategy.solver.ridge_lambda
    return Solution(classifier, feature_map, stats, ridge_lambda, metrics)
