"""``upload``: bytes, time and error of each form on the wire."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fed3r_app.core import (
    FeatureMap,
    FeatureMoments,
    RidgeStatistics,
    RunningSum,
    predict,
    solve_ridge,
)
from fed3r_app.wire import pack_statistics, unpack_contribution
from simulation.bench.inputs import (
    FEDERATIONS,
    INATURALIST,
    LANDMARKS,
    Features,
    describe_inputs,
    load_features,
)
from simulation.bench.measure import announce, best_seconds, threads
from simulation.bench.record_sizes import UPLOADS, Upload
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_PAPER_LAMBDA = 0.01
_RANDOM = 10_000  # random features
_DENSE, _FACTOR, _HALF = UPLOADS[0], UPLOADS[3], UPLOADS[4]
# (federation, d) -> times fewer bytes: every image its own class; one class a client.
_WANTED = {
    (INATURALIST.name, 1280): (165.0, 210.0),
    (LANDMARKS.name, 1280): (23.0, 30.0),
    (INATURALIST.name, _RANDOM): (800.0, 850.0),
}


def run(options: Options) -> Result:
    """Compare what travels, what it costs to make, and what it loses."""
    ratios: list[Ratio] = []
    features = load_features(options.data, limit=1000 if options.quick else None)
    with threads():
        tables = [
            _count_bytes(options, ratios),
            _time(1280, 1203, 13, repeats=2 if options.quick else 20),
            _compare_solutions(features, 10 if options.quick else 100, ratios),
        ]
        if not options.quick:  # a dense record is half a GB, or one
            tables.append(_time(_RANDOM, 1203, 13, repeats=1))
            few = _map_randomly(features, _RANDOM, limit=1000)
            tables.append(_compare_solutions(few, 5, ratios))
    notes = [
        describe_inputs(options.data),
        "Bytes: serialised records. Worst: min(n, C) classes per client; best: one.",
        "float16 goes with factors only: the entries of A pass its largest number.",
    ]
    return Result(tables, ratios, notes)


def _count_bytes(options: Options, ratios: list[Ratio]) -> Table:
    """Return total bytes by federation, d and form; note the ratios."""
    rows: list[tuple[Cell, ...]] = []
    for federation in FEDERATIONS:
        announce(f"bytes of {federation.name}")
        num_classes = federation.num_classes
        sizes = federation.sizes(options.data).tolist()
        for d in (1280, _RANDOM):
            most = [(n, min(n, num_classes)) for n in sizes]  # (n, C_k)
            dense = _DENSE.total_bytes(d, num_classes, most)
            where = f"{federation.name}, d = {d:,}"
            for upload in UPLOADS:
                worst = upload.total_bytes(d, num_classes, most)
                best = upload.total_bytes(d, num_classes, ((n, 1) for n in sizes))
                row = (worst // len(sizes), worst / 1e9, dense / worst, dense / best)
                rows.append((where, upload.name, *row))
                if upload == _FACTOR:
                    wanted = _WANTED.get((federation.name, d), (None, None))
                    ratios += [
                        Ratio(f"dense / factor, {where}, worst", row[2], wanted[0]),
                        Ratio(f"dense / factor, {where}, best", row[3], wanted[1]),
                    ]
                    single = worst
            ratios.append(
                Ratio(f"float16 / float32, {where}", worst / single, 0.52, at_most=True)
            )
    columns = ("federation", "upload", "bytes per client", "GB in all")
    return Table("bytes", (*columns, "dense / worst", "dense / best"), rows)


def _time(d: int, num_classes: int, n: int, repeats: int) -> Table:
    """Return the time to make and to read the record of a mean client."""
    random = torch.Generator().manual_seed(0)
    Z, y = torch.randn(n, d, generator=random), torch.arange(n)
    rows: list[tuple[Cell, ...]] = []
    for upload in UPLOADS:
        make = partial(pack_statistics, Z, y, num_classes, upload.form, upload.dtype)
        pack = best_seconds(make, repeats)
        unpack = best_seconds(partial(unpack_contribution, make()), repeats)
        rows.append((upload.name, 1e3 * pack, 1e3 * unpack))
    title = f"one client: {n} images, d = {d:,}, C = {num_classes:,}"
    return Table(title, ("upload", "pack ms", "unpack ms"), rows)


def _map_randomly(features: Features, D: int, limit: int) -> Features:
    """Return D random features of some of the images, and of all to test on."""
    sigma = FeatureMoments.of(features.Z).sigma()
    feature_map = FeatureMap(features.Z.shape[1], D, sigma)
    return replace(
        features,
        Z=feature_map(features.Z[:limit]),
        y=features.y[:limit],
        Z_test=feature_map(features.Z_test),
    )


def _compare_solutions(
    features: Features, num_clients: int, ratios: list[Ratio]
) -> Table:
    """Return the error in W of each form, and whether predictions change."""
    clients = features.split(num_clients)
    d = features.Z.shape[1]
    exact = RidgeStatistics.of(features.Z, features.y, features.num_classes)
    W = solve_ridge(exact, _PAPER_LAMBDA)
    rows: list[tuple[Cell, ...]] = []
    for upload in UPLOADS:
        announce(f"solution over the wire, d = {d:,}, {upload.name}")
        W_upload = _solve_over_the_wire(features, clients, upload)
        error = float((W_upload - W).norm() / W.norm())
        other = 1 - _agreement(features, W, W_upload)  # three digits would hide it
        rows.append((upload.name, error, 100 * other))
        if upload == _HALF:
            name = f"float16: share of other predictions, d = {d:,}"
            wanted = 0.005 if d < _RANDOM else None
            ratios.append(Ratio(name, other, wanted, at_most=True))
    about = f"{len(clients)} clients, {len(features.y):,} images"
    title = f"classifier of {about}, d = {d:,}"
    return Table(title, ("upload", "error in W", "other predictions %"), rows)


def _solve_over_the_wire(
    features: Features, clients: list[Tensor], upload: Upload
) -> Tensor:
    total = RunningSum(RidgeStatistics.zeros(features.Z.shape[1], features.num_classes))
    for rows in clients:
        Z, y = features.Z[rows], features.y[rows]
        record = pack_statistics(Z, y, features.num_classes, upload.form, upload.dtype)
        total.add(unpack_contribution(record))
    return solve_ridge(total.value(), _PAPER_LAMBDA)


def _agreement(features: Features, W: Tensor, other: Tensor) -> float:
    """Return the share of test features that two classifiers call the same."""
    present = torch.ones(features.num_classes, dtype=torch.bool)
    Z = features.Z_test
    same = predict(Z, W, present) == predict(Z, other, present)
    return float(same.double().mean())
