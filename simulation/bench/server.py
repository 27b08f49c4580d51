"""``server``: folding a stream of uploads, against adding dense matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from flwr.app import ArrayRecord

from fed3r_app.core import (
    FeatureMap,
    Limits,
    RidgeStatistics,
    RunningSum,
    StatisticsFactor,
)
from fed3r_app.wire import pack_statistics, unpack_contribution, unpack_statistics
from simulation.bench.inputs import INATURALIST, describe_inputs
from simulation.bench.measure import Measured, announce, measure, timed
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_DIM = 1280
_LIMIT_BYTES = 300e6


def run(options: Options) -> Result:
    """Compare the ways to add up what the clients of iNaturalist send."""
    sizes = np.random.default_rng(0).permutation(INATURALIST.sizes(options.data))
    d, num_classes = (256, 100) if options.quick else (_DIM, INATURALIST.num_classes)
    stream = sizes[:100] if options.quick else sizes
    alone = not options.quick
    few = sizes[:20] if options.quick else sizes[:300]  # the rate of dense is constant
    announce(f"folding the factors of {len(stream):,} clients")
    folded = measure(fold_factors, stream.tolist(), d, num_classes, isolated=alone)
    announce(f"adding the matrices of {len(few):,} clients")
    unpacked = measure(add_dense, few.tolist(), d, num_classes, isolated=alone)
    expanded = measure(add_expanded, few.tolist(), d, num_classes, isolated=alone)
    added = measure(add_ready_matrices, len(few), d, num_classes, isolated=alone)
    ways = {
        "factors, unpacked, checked and folded": (len(stream), folded),
        "dense uploads, unpacked and added": (len(few), unpacked),
        "factors, unpacked, checked, made dense, added": (len(few), expanded),
        "dense matrices, added only": (len(few), added),
    }
    sums = 8 * (d * d + d * num_classes)
    rows: list[tuple[Cell, ...]] = [
        (name, number, number / taken.value, _megabytes(taken, sums))
        for name, (number, taken) in ways.items()
    ]
    columns = ("way", "clients", "clients per s", "MB above A and b")
    rate, wanted = len(stream) / folded.value, None if options.quick else 5.0
    ratios = [
        Ratio("folding / dense uploads", rate * unpacked.value / len(few), wanted),
        Ratio("folding / making dense", rate * expanded.value / len(few)),
        Ratio("folding / dense addition alone", rate * added.value / len(few)),
        Ratio(
            "MB above A and b",
            _megabytes(folded, sums),
            _LIMIT_BYTES / 1e6,
            at_most=True,
        ),
    ]
    title = f"server: clients of {INATURALIST.name}, d = {d:,}, C = {num_classes:,}"
    return Result(
        [Table(title, columns, rows)], ratios, [describe_inputs(options.data)]
    )


def fold_factors(sizes: list[int], d: int, num_classes: int) -> float:
    """Return the seconds to unpack, check and fold a stream of factors."""
    total, limits = RunningSum(RidgeStatistics.zeros(d, num_classes)), _limits(d)

    def add(record: ArrayRecord) -> None:
        total.add(unpack_contribution(record, (d, num_classes), limits))

    seconds = _time_each(add, _records(sizes, d, num_classes, "factor"))
    return seconds + timed(total.value)[1]


def add_dense(sizes: list[int], d: int, num_classes: int) -> float:
    """Return the seconds to unpack dense uploads, unchecked, and add them up."""
    total = RidgeStatistics.zeros(d, num_classes)

    def add(record: ArrayRecord) -> None:
        _add_in_place(total, unpack_statistics(record, (d, num_classes)))

    return _time_each(add, _records(sizes, d, num_classes, "dense"))


def add_expanded(sizes: list[int], d: int, num_classes: int) -> float:
    """Return the seconds to add factors up without folding: A and b of each."""
    total, limits = RidgeStatistics.zeros(d, num_classes), _limits(d)

    def add(record: ArrayRecord) -> None:
        part = unpack_contribution(record, (d, num_classes), limits)
        assert isinstance(part, StatisticsFactor)
        _add_in_place(total, part.statistics())

    return _time_each(add, _records(sizes, d, num_classes, "factor"))


def _time_each(
    add: Callable[[ArrayRecord], None], records: Iterator[ArrayRecord]
) -> float:
    """Return the seconds to add records; those to make them are left out."""
    return sum(timed(partial(add, record))[1] for record in records)


def add_ready_matrices(number: int, d: int, num_classes: int) -> float:
    """Return the seconds to add up matrices that lie unpacked in memory."""
    total = RidgeStatistics.zeros(d, num_classes)
    ready = RidgeStatistics.of(torch.randn(8, d), torch.arange(8), num_classes)
    return sum(timed(partial(_add_in_place, total, ready))[1] for _ in range(number))


def _limits(d: int) -> Limits:
    """Return a range that the features drawn here keep."""
    return Limits.of(FeatureMap(d), (-10.0, 10.0))


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


def _megabytes(taken: Measured, sums: int) -> float:
    """Return the peak memory beyond the sums themselves."""
    return (taken.extra_bytes - sums) / 1e6
