"""``upload``: bytes, time and error of each form on the wire."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from flwr.app import RecordDict

from fed3r_app.core import RidgeStatistics, RunningSum, predict, solve_ridge
from fed3r_app.wire import count_bytes, pack_statistics, unpack_contribution
from fed3r_app.wire.layout import Header
from simulation.bench.inputs import (
    FEDERATIONS,
    INATURALIST,
    LANDMARKS,
    Features,
    describe_inputs,
    load_features,
)
from simulation.bench.measure import announce, best_seconds
from simulation.bench.result import Result

_PAPER_LAMBDA = 0.01
_NUM_CLASSES, _MEAN_SIZE = 1203, 13  # of iNaturalist
_RANDOM = 10_000  # random features
# (federation, d) -> times fewer bytes: every image its own class; one class a client.
_WANTED = {
    (INATURALIST.name, 1280): (165.0, 210.0),
    (LANDMARKS.name, 1280): (23.0, 30.0),
    (INATURALIST.name, _RANDOM): (800.0, 850.0),
}


@dataclass(frozen=True)
class Upload:
    """A form and a type of the numbers: ``upload`` and ``upload-dtype``."""

    form: str
    dtype: str

    @property
    def name(self) -> str:
        """The upload in words."""
        return f"{self.form} {self.dtype}"

    def total_bytes(
        self, d: int, num_classes: int, clients: Iterable[tuple[int, int]]
    ) -> int:
        """Return the serialised bytes of clients with (n, C_k) each."""
        # Around the numbers: names, types, the header.
        framing = self.real_bytes(8, 4, 3, 2) - self._payload(8, 4, 3, 2)
        return sum(
            number * (self._payload(d, num_classes, n, present) + framing)
            for (n, present), number in Counter(clients).items()
        )

    def real_bytes(self, d: int, num_classes: int, n: int, present: int) -> int:
        """Return the serialised bytes of a record that is really made."""
        Z = torch.randn(n, d, generator=torch.Generator().manual_seed(n))
        y = torch.arange(n) % present
        record = pack_statistics(Z, y, num_classes, self.form, self.dtype)
        return count_bytes(RecordDict({"arrays": record}))

    def _payload(self, d: int, num_classes: int, n: int, present: int) -> int:
        """Return the bytes of the numbers of n images of C_k classes."""
        rank = min(n, d) if self.form == "factor" else 0
        header = Header(self.form, self.dtype, d, num_classes, n, rank, present)
        arrays = header.layout().values()
        return sum(prod(shape) * np.dtype(dtype).itemsize for dtype, shape in arrays)


UPLOADS = (
    Upload("dense", "float32"),
    Upload("packed", "float32"),
    Upload("factor", "float64"),
    Upload("factor", "float32"),
    Upload("factor", "float16"),
)
_DENSE, _, _, _FACTOR, _HALF = UPLOADS


def run(result: Result) -> None:
    """Compare what travels, what it costs to make, and what it loses."""
    _count_bytes(result)
    features = load_features(result.data, limit=1000 if result.quick else None)
    _compare(result, features, *((10, 2) if result.quick else (100, 20)))
    if not result.quick:  # a dense record is half a GB, or one
        feature_map = features.random_map(_RANDOM)
        Z, Z_test = feature_map(features.Z[:1000]), feature_map(features.Z_test)
        few = replace(features, Z=Z, y=features.y[:1000], Z_test=Z_test)
        _compare(result, few, num_clients=5, repeats=1)
    result.notes += [
        describe_inputs(result.data),
        "Bytes: serialised records. Worst: min(n, C) classes per client; best: one.",
        "float16 goes with factors only: the entries of A pass its largest number.",
    ]


def _count_bytes(result: Result) -> None:
    """Add the bytes of float32 factors by federation and d, and their ratios."""
    rows = []
    for federation, d in itertools.product(FEDERATIONS, (1280, _RANDOM)):
        where, C = f"{federation.name}, d = {d:,}", federation.num_classes
        announce(f"bytes of {where}")
        sizes = federation.sizes(result.data).tolist()
        most = [(n, min(n, C)) for n in sizes]  # (n, C_k)
        dense, single, half = (
            upload.total_bytes(d, C, most) for upload in (_DENSE, _FACTOR, _HALF)
        )
        least = _FACTOR.total_bytes(d, C, ((n, 1) for n in sizes))
        worst, best, share = dense / single, dense / least, half / single
        rows.append((where, single // len(sizes), worst, best, share))
        wanted = _WANTED.get((federation.name, d), (None, None))
        result.ratio(f"dense / factor, {where}, worst", worst, wanted[0])
        result.ratio(f"dense / factor, {where}, best", best, wanted[1])
        result.ratio(f"float16 / float32, {where}", share, 0.52, at_most=True)
    ratios = ("dense / factor, worst", "best", "float16 / float32")
    columns = ("federation, float32 factors", "bytes per client", *ratios)
    result.table("bytes", columns, rows)


def _compare(
    result: Result, features: Features, num_clients: int, repeats: int
) -> None:
    """Add each form's time for a mean client, its error in W, its predictions."""
    d, num_classes = features.Z.shape[1], features.num_classes
    Z = torch.randn(_MEAN_SIZE, d, generator=torch.Generator().manual_seed(0))
    client = (Z, torch.arange(_MEAN_SIZE), _NUM_CLASSES)
    W = solve_ridge(
        RidgeStatistics.of(features.Z, features.y, num_classes), _PAPER_LAMBDA
    )
    present = torch.ones(num_classes, dtype=torch.bool)
    expected = predict(features.Z_test, W, present)
    rows = []
    for upload in UPLOADS:
        announce(f"d = {d:,}, {upload.name}")
        how = (upload.form, upload.dtype)
        pack = best_seconds(repeats, pack_statistics, *client, *how)
        record = pack_statistics(*client, *how)
        unpack = best_seconds(repeats, unpack_contribution, record)
        total = RunningSum(RidgeStatistics.zeros(d, num_classes))
        for part in features.split(num_clients):
            sent = (features.Z[part], features.y[part], num_classes)
            total.add(unpack_contribution(pack_statistics(*sent, *how)))
        W_upload = solve_ridge(total.value(), _PAPER_LAMBDA)
        error = float((W_upload - W).norm() / W.norm())
        same = predict(features.Z_test, W_upload, present) == expected
        other = 1 - float(same.double().mean())  # three digits would hide it
        rows.append((upload.name, 1e3 * pack, 1e3 * unpack, error, 100 * other))
        if upload == _HALF:
            name = f"float16: share of other predictions, d = {d:,}"
            wanted = 0.005 if d < _RANDOM else None
            result.ratio(name, other, wanted, at_most=True)
    title = (
        f"d = {d:,}; times of one client: {_MEAN_SIZE} images, C = {_NUM_CLASSES:,}; "
        f"classifier of {num_clients} clients, {len(features.y):,} images"
    )
    columns = ("upload", "pack ms", "unpack ms", "error in W", "other predictions %")
    result.table(title, columns, rows)
