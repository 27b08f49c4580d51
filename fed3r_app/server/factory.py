"""The feature map and the strategy that the settings of a run ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from logging import INFO

from flwr.common.logger import log

from fed3r_app.config import SECAGG
from fed3r_app.core import FeatureMap, Limits, RidgeStatistics
from fed3r_app.privacy.gaussian import NORM
from fed3r_app.privacy.secagg import FixedPointEncoding
from fed3r_app.runs.snapshots import Snapshot
from fed3r_app.server.context import RunContext
from strategies import (
    ClientRegistry,
    CohortSampler,
    Fed3R,
    FedNCM,
    Release,
    SecureAggregation,
    SecureFedNCM,
)


def choose_feature_map(
    context: RunContext, registry: ClientRegistry, earlier: Snapshot | None
) -> FeatureMap:
    """Return the map from backbone features to those of the statistics."""
    config, d = context.config, context.backbone.dim
    norm = NORM if config.dp_epsilon else 0.0
    if config.method != "fed3r-rf":
        return FeatureMap(d, intercept=config.fit_intercept, norm=norm)
    if config.rf_sigma != "auto":
        sigma = config.rf_sigma
    elif earlier:
        sigma = float(earlier.settings["rf_sigma"] or 0)
    else:
        assert registry.moments is not None
        # The sums' last digits depend on the order of the replies; these don't.
        sigma = float(f"{registry.moments.sigma():.6g}")
        log(INFO, "rf-sigma = %g from the spread of the features", sigma)
    return FeatureMap(d, config.rf_dim, sigma, config.seed, config.fit_intercept, norm)


def fixed_point_encoding(
    context: RunContext, feature_map: FeatureMap
) -> FixedPointEncoding:
    """Return how features become integers under secure aggregation."""
    config = context.config
    return FixedPointEncoding.choose(
        feature_map,
        context.backbone.feature_range,
        None if config.secagg_max_feature == "auto" else config.secagg_max_feature,
        config.secagg_max_samples,
    )


def make_strategy(
    context: RunContext,
    registry: ClientRegistry,
    sampler: CohortSampler,
    feature_map: FeatureMap,
    start: RidgeStatistics,
    *,
    class_means: bool = False,
    eval_every: int = 0,
    first_round: int = 1,
    contributions: Mapping[str, str] | None = None,
    release: Release | None = None,
) -> Fed3R:
    """Return a strategy with the settings of the run."""
    config = context.config
    kind: Callable[..., Fed3R] = FedNCM if class_means else Fed3R
    if config.privacy == SECAGG:
        kind = partial(
            SecureFedNCM if class_means else SecureAggregation,
            grid=fixed_point_encoding(context, feature_map),
            threshold_share=config.secagg_threshold,
        )
    return kind(
        registry,
        sampler,
        start,
        ridge_lambda=None if config.ridge_lambda == "auto" else config.ridge_lambda,
        normalize=config.normalize_classes,
        intercept=config.fit_intercept,
        eval_every=eval_every,
        first_round=first_round,
        limits=Limits.of(
            feature_map, context.backbone.feature_range, config.max_client_samples
        ),
        contributions=contributions,
        release=release,
    )
