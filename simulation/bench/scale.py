"""``scale``: one client with very many images, and D = 10,000 random features."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import (
    RidgeStatistics,
    RunningSum,
    count_correct,
    select_lambda,
    solve_ridge,
)
from fed3r_app.wire import StatisticsBuilder, pack_statistics, unpack_contribution
from simulation.bench.inputs import describe_inputs, load_features
from simulation.bench.measure import Clock, timed
from simulation.bench.result import Result

_CHUNK = 2048  # as the clients read their features
_AGGREGATING = "server: unpacking and aggregating"


def run(result: Result) -> None:
    """Measure time and memory where they are largest."""
    many, d, num_classes = (2000, 128, 50) if result.quick else (100_000, 1280, 1203)
    rows = []
    factors = (("factor", n) for n in (1, many // 10, many))
    for form, n in (*factors, ("dense", many)):
        step = f"statistics of {n:,} images, {form}"
        taken = result.measure(step, make_statistics, n, d, num_classes, form)
        rows.append((f"{form}, {n:,}", taken.value, taken.extra_bytes / 1e6))
    title = f"one client: statistics of n images, d = {d:,}, C = {num_classes:,}"
    result.table(title, ("form, n", "seconds", "MB"), rows)

    D, limit = (500, 1000) if result.quick else (10_000, None)
    title = f"100 clients, D = {D:,} random features, {limit or 10_000:,} images"
    taken = result.measure(title, run_random_features, result.data, D, limit)
    peak = taken.peak_bytes / 1e9
    steps = [*taken.value.items(), ("peak GB, all included", peak)]
    result.table(title, ("step", "seconds"), steps)
    result.ratio(f"peak GB, D = {D:,}", peak, 6.0, at_most=True)
    result.notes.append(describe_inputs(result.data))


def make_statistics(n: int, d: int, num_classes: int, form: str) -> float:
    """Return the seconds to make the record of n images, drawn chunk by chunk."""
    random = torch.Generator().manual_seed(0)
    builder, seconds = StatisticsBuilder(num_classes, form), 0.0
    for start in range(0, n, _CHUNK):
        number = min(_CHUNK, n - start)
        Z = torch.randn(number, d, generator=random)
        y = torch.randint(num_classes, (number,), generator=random)
        seconds += timed(builder.add, Z, y)[1]
    return seconds + timed(builder.pack)[1]


def run_random_features(
    data: Path | None, D: int, limit: int | None
) -> dict[str, float]:
    """Return the seconds of each step, from backbone features to an accuracy."""
    features = load_features(data, limit)
    feature_map = features.random_map(D)
    clock = Clock()

    def pack(rows: Tensor) -> ArrayRecord:
        Z, y = feature_map(features.Z[rows]), features.y[rows]
        return pack_statistics(Z, y, features.num_classes)

    total = RunningSum(RidgeStatistics.zeros(D, features.num_classes))
    clock("drawing the random features", feature_map, features.Z[:1])
    for rows in features.split(100):
        record = clock("clients: mapping and packing", pack, rows)
        part = clock(_AGGREGATING, unpack_contribution, record)
        clock(_AGGREGATING, total.add, part)
    stats = clock(_AGGREGATING, total.value)
    lam = clock("server: lambda by GCV", select_lambda, stats)
    W = clock("server: solving", solve_ridge, stats, lam)

    def evaluate() -> int:
        Z_test, present = feature_map(features.Z_test), stats.counts > 0
        return count_correct(Z_test, features.y_test, W, present)

    accuracy = 100 * clock("server: evaluating", evaluate) / len(features.y_test)
    seconds = {step: sum(taken) for step, taken in clock.items()}
    return {**seconds, "accuracy % (not a time)": accuracy}
