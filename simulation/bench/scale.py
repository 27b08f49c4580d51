"""``scale``: one client with very many images, and D = 10,000 random features."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import (
    FeatureMap,
    FeatureMoments,
    RidgeStatistics,
    RunningSum,
    count_correct,
    select_lambda,
    solve_ridge,
)
from fed3r_app.wire import StatisticsBuilder, pack_statistics, unpack_contribution
from simulation.bench.inputs import describe_inputs, load_features
from simulation.bench.measure import Clock, announce, measure, timed
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_CHUNK = 2048  # as the clients read their features
_LIMIT_GB = 6.0
_AGGREGATING = "server: unpacking and aggregating"


def run(options: Options) -> Result:
    """Measure time and memory where they are largest."""
    clients = _measure_clients(options.quick)
    features, ratio = _measure_random_features(options)
    one, many = (float(clients.rows[i][3] or 0) for i in (0, 2))
    ratios = [ratio, Ratio("client's ms per image, most / one", many / one)]
    return Result([clients, features], ratios, [describe_inputs(options.data)])


def _measure_clients(quick: bool) -> Table:
    """Return what statistics cost a client of one, of many, of very many images."""
    many, d, num_classes = (2000, 128, 50) if quick else (100_000, 1280, 1203)
    rows: list[tuple[Cell, ...]] = []
    for form, n in (
        *(("factor", 1), ("factor", many // 10), ("factor", many)),
        ("dense", many),
    ):
        announce(f"statistics of {n:,} images, {form}")
        taken = measure(make_statistics, n, d, num_classes, form, isolated=not quick)
        per_image = 1e3 * taken.value / n
        rows.append((f"{form}, {n:,}", taken.value, taken.extra_bytes / 1e6, per_image))
    title = f"one client: statistics of n images, d = {d:,}, C = {num_classes:,}"
    return Table(title, ("form, n", "seconds", "MB", "ms per image"), rows)


def make_statistics(n: int, d: int, num_classes: int, form: str) -> float:
    """Return the seconds to make the record of n images, drawn chunk by chunk."""
    random = torch.Generator().manual_seed(0)
    builder, seconds = StatisticsBuilder(num_classes, form), 0.0
    for start in range(0, n, _CHUNK):
        number = min(_CHUNK, n - start)
        Z = torch.randn(number, d, generator=random)
        y = torch.randint(num_classes, (number,), generator=random)
        seconds += timed(partial(builder.add, Z, y))[1]
    return seconds + timed(builder.pack)[1]


def _measure_random_features(options: Options) -> tuple[Table, Ratio]:
    """Return the steps of a run with random features, and its peak memory."""
    D, limit = (500, 1000) if options.quick else (10_000, None)
    announce(f"100 clients, D = {D:,}")
    taken = measure(
        run_random_features, options.data, D, limit, isolated=not options.quick
    )
    steps: dict[str, float] = taken.value
    peak = taken.peak_bytes / 1e9
    rows: list[tuple[Cell, ...]] = [*steps.items(), ("peak GB, all included", peak)]
    title = f"100 clients, D = {D:,} random features, {limit or 10_000:,} images"
    ratio = Ratio(f"peak GB, D = {D:,}", peak, _LIMIT_GB, at_most=True)
    return Table(title, ("step", "seconds"), rows), ratio


def run_random_features(
    data: Path | None, D: int, limit: int | None
) -> dict[str, float]:
    """Return the seconds of each step, from backbone features to an accuracy."""
    features = load_features(data, limit)
    sigma = FeatureMoments.of(features.Z).sigma()
    feature_map = FeatureMap(features.Z.shape[1], D, sigma)
    clock = Clock()

    def pack(rows: Tensor) -> ArrayRecord:
        Z, y = feature_map(features.Z[rows]), features.y[rows]
        return pack_statistics(Z, y, features.num_classes)

    total = RunningSum(RidgeStatistics.zeros(D, features.num_classes))
    clock("drawing the random features", lambda: feature_map(features.Z[:1]))
    for rows in features.split(100):
        record = clock("clients: mapping and packing", partial(pack, rows))
        part = clock(_AGGREGATING, partial(unpack_contribution, record))
        clock(_AGGREGATING, partial(total.add, part))
    stats = clock(_AGGREGATING, total.value)
    lam = clock("server: lambda by GCV", lambda: select_lambda(stats))
    W = clock("server: solving", lambda: solve_ridge(stats, lam))

    def evaluate() -> int:
        Z_test, present = feature_map(features.Z_test), stats.counts > 0
        return count_correct(Z_test, features.y_test, W, present)

    correct = clock("server: evaluating", evaluate)
    accuracy = 100 * correct / len(features.y_test)
    seconds = {step: sum(taken) for step, taken in clock.items()}
    return {**seconds, "accuracy % (not a time)": accuracy}
