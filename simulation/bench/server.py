"""``server``: aggregating a stream of uploads, against adding dense matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from flwr.app import ArrayRecord

from fed3r_app.core import (
    FeatureMap,
    Limits,
    RidgeStatistics,
    RunningSum,
)
from fed3r_app.wire import pack_statistics, unpack_contribution, unpack_statistics
from simulation.bench.inputs import INATURALIST, describe_inputs
from simulation.bench.measure import timed
from simulation.bench.result import Result

_FOLDED = "factors, unpacked, checked and aggregated"
_DENSE = "dense uploads, unpacked and added"
_EXPANDED = "factors, unpacked, checked, made dense, added"
_READY = "dense matrices, added only"


def run(result: Result) -> None:
    """Compare the ways to aggregate what the clients of iNaturalist send."""
    sizes = np.random.default_rng(0).permutation(INATURALIST.sizes(result.data))
    d, num_classes = (256, 100) if result.quick else (1280, INATURALIST.num_classes)
    few = 20 if result.quick else 300  # the rate of dense is constant
    many = 100 if result.quick else len(sizes)
    held = 8 * (d * d + d * num_classes)  # bytes of A and b
    rows = []
    for way in (_FOLDED, _DENSE, _EXPANDED, _READY):
        stream = sizes[: many if way == _FOLDED else few].tolist()
        step = f"{way}, {len(stream):,} clients"
        taken = result.measure(step, time_way, way, stream, d, num_classes)
        rate, megabytes = len(stream) / taken.value, (taken.extra_bytes - held) / 1e6
        rows.append((way, len(stream), rate, megabytes))
    (*_, rate, megabytes), *others = rows
    for way, _, other, _ in others:
        wanted = 5.0 if way == _DENSE and not result.quick else None
        result.ratio(f"aggregated / {way}", rate / other, wanted)
    result.ratio("MB above A and b", megabytes, 300.0, at_most=True)
    columns = ("way", "clients", "clients per s", "MB above A and b")
    title = f"server: clients of {INATURALIST.name}, d = {d:,}, C = {num_classes:,}"
    result.table(title, columns, rows)
    result.notes.append(describe_inputs(result.data))


def time_way(way: str, sizes: list[int], d: int, num_classes: int) -> float:
    """Return the seconds to add the records of clients, made outside of that time.

    Factors are checked as a run checks them, dense uploads are not.
    """
    shape, limits = (d, num_classes), Limits.of(FeatureMap(d), (-10.0, 10.0))
    total = RidgeStatistics.zeros(*shape)
    if way == _READY:
        ready = RidgeStatistics.of(torch.randn(8, d), torch.arange(8), num_classes)
        return sum(timed(_add_in_place, total, ready)[1] for _ in sizes)
    running = RunningSum(total)

    def add(record: ArrayRecord) -> None:
        if way == _DENSE:
            _add_in_place(total, unpack_statistics(record, shape))
            return
        part = unpack_contribution(record, shape, limits)
        if way == _FOLDED:
            running.add(part)
        else:
            _add_in_place(total, part.statistics())

    form = "dense" if way == _DENSE else "factor"
    seconds = sum(timed(add, record)[1] for record in _records(sizes, *shape, form))
    return seconds + (timed(running.value)[1] if way == _FOLDED else 0.0)


def _add_in_place(total: RidgeStatistics, part: RidgeStatistics) -> None:
    total.A.add_(part.A)
    total.b.add_(part.b)
    total.counts.add_(part.counts)


def _records(
    sizes: list[int], d: int, num_classes: int, form: str
) -> Iterator[ArrayRecord]:
    """Yield the records of clients with so many images, each of a random class."""
    random = torch.Generator().manual_seed(0)
    for n in sizes:
        Z = torch.randn(n, d, generator=random)
        y = torch.randint(num_classes, (n,), generator=random)
        yield pack_statistics(Z, y, num_classes, form)
