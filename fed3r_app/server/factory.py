"""The feature map, sampler, accumulator and strategy that a run's settings ask for."""

from __future__ import annotations

from collections.abc import Collection
from logging import INFO
from typing import Any

from flwr.common.logger import log

from fed3r_app.config import SECAGG, WITH_REPLACEMENT
from fed3r_app.core import FeatureMap, HeadOptions, Limits, RidgeStatistics
from fed3r_app.core.names import METHODS
from fed3r_app.privacy import DISTRIBUTED, SMALLEST_GROUP
from fed3r_app.privacy.gaussian import NORM, PrivacyBudget
from fed3r_app.privacy.release import CentralNoise, DistributedNoise
from fed3r_app.privacy.secagg import FixedPointEncoding
from fed3r_app.runs.snapshots import Snapshot
from fed3r_app.server.context import RunContext
from strategies import (
    Accumulator,
    CohortSampler,
    Fed3R,
    GroupSampler,
    HeadSolver,
    SecureAggregation,
    natural_key,
)


def choose_feature_map(context: RunContext, earlier: Snapshot | None) -> FeatureMap:
    """Return the map from backbone features to those of the statistics."""
    config, d = context.config, context.backbone.dim
    norm = NORM if config.dp_epsilon else 0.0
    if not METHODS[config.method].random_features:
        return FeatureMap(d, intercept=config.fit_intercept, norm=norm)
    if config.rf_sigma != "auto":
        sigma = config.rf_sigma
    elif earlier:
        sigma = float(earlier.settings["rf_sigma"] or 0)
    else:
        moments = context.registry.moments
        assert moments is not None
        # The last digits of a sum depend on the order of the replies; these don't.
        sigma = float(f"{moments.sigma():.6g}")
        log(INFO, "rf-sigma = %g from the spread of the features", sigma)
    return FeatureMap(d, config.rf_dim, sigma, config.seed, config.fit_intercept, norm)


def fixed_point_encoding(
    context: RunContext, feature_map: FeatureMap
) -> FixedPointEncoding | None:
    """Return how features become integers, with secure aggregation only."""
    config = context.config
    if config.privacy != SECAGG:
        return None
    return FixedPointEncoding.choose(
        feature_map,
        context.backbone.feature_range,
        None if config.secagg_max_feature == "auto" else config.secagg_max_feature,
        config.secagg_max_samples,
    )


def make_sampler(
    context: RunContext, counted: Collection[str] = (), rounds: int = 0
) -> CohortSampler:
    """Return what samples the clients of each round.

    ``counted`` are the clients of an earlier part of the run, of so many ``rounds``.
    """
    config = context.config
    clients = sorted({*context.registry.clients, *counted}, key=natural_key)
    options: dict[str, Any] = {
        "per_round": config.per_round,
        "seed": config.seed,
        "max_retries": config.max_retries,
        "counted": counted,
        "min_clients": config.min_clients,
    }
    if config.privacy != SECAGG:
        return CohortSampler(
            clients,
            with_replacement=config.sampling == WITH_REPLACEMENT,
            max_rounds=config.statistics_rounds,
            rounds=rounds,
            **options,
        )
    if len(clients) < SMALLEST_GROUP:
        raise ValueError(
            f"privacy = {SECAGG!r} must be met by {SMALLEST_GROUP} clients or more, "
            f"got {len(clients)}: a sum over fewer reveals each of them."
        )
    return GroupSampler(clients, group_size=config.secagg_group, **options)


def make_accumulator(
    context: RunContext, feature_map: FeatureMap, earlier: Snapshot | None = None
) -> Accumulator:
    """Return the sum that a run starts from: an earlier part's, or zeros."""
    encoding = fixed_point_encoding(context, feature_map)
    if earlier:
        start = earlier.relabelled(context.class_names).statistics
        start = encoding.unscaled(start) if encoding else start
    else:
        start = RidgeStatistics.zeros(feature_map.dim, context.num_classes)
    feature_range = context.backbone.feature_range
    return Accumulator(
        start.to(context.device),
        earlier.contributions if earlier else None,
        Limits.of(feature_map, feature_range, context.config.max_client_samples),
        _make_noise(context, feature_map),
        encoding,
    )


def make_strategy(
    context: RunContext,
    sampler: CohortSampler,
    accumulator: Accumulator,
    head: str = "ridge",
    **options: Any,
) -> Fed3R:
    """Return a strategy with the settings of the run; for the options see ``Fed3R``."""
    config = context.config
    lam = None if config.ridge_lambda == "auto" else config.ridge_lambda
    given = HeadOptions(lam, config.normalize_classes, config.fit_intercept)
    options |= {"registry": context.registry, "solver": HeadSolver(head, given)}
    options["max_unreadable"] = config.max_unreadable
    if not isinstance(sampler, GroupSampler):
        return Fed3R(sampler=sampler, accumulator=accumulator, **options)
    return SecureAggregation(
        sampler=sampler,
        accumulator=accumulator,
        threshold_share=config.secagg_threshold,
        compare_groups=not context.made_the_split,
        **options,
    )


def _make_noise(
    context: RunContext, feature_map: FeatureMap
) -> CentralNoise | DistributedNoise | None:
    """Return the noise of differential privacy, where that is asked for."""
    config = context.config
    if not config.dp_epsilon:
        return None
    budget = PrivacyBudget(config.dp_epsilon, config.dp_delta)
    if config.dp_mode == DISTRIBUTED:
        return DistributedNoise(budget, feature_map.dim)
    return CentralNoise(budget, feature_map.dim, context.num_classes)
