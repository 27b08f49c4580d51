"""``secagg``: what secure aggregation costs a client and the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.privacy.secagg import (
    FixedPointEncoding,
    Group,
    IntegerStatistics,
    Member,
    group_threshold,
)
from fed3r_app.privacy.secagg.fixed_point import vector_length
from fed3r_app.wire import count_bytes, pack_statistics
from fed3r_app.wire import secagg as records
from simulation.bench.measure import threads
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_SAMPLES, _ZMAX, _N_MAX = 120, 6.0, 1_000_000
_SHARE = 0.6
# The last is the server's.
_STEPS = ("keys", "share", "statistics", "mask", "answer", "unmask")


def run(options: Options) -> Result:
    """Run a group with nobody, one and as many as possible dropping out."""
    d, num_classes, size = (160, 10, 5) if options.quick else (1280, 100, 10)
    ratios: list[Ratio] = []
    rows: list[tuple[Cell, ...]] = []
    with threads():
        packed = _packed_bytes(d, num_classes)
        for dropped in (0, 1, size - group_threshold(size, _SHARE)):
            group = _GroupSimulation(d, num_classes, size)
            group.run(dropped)
            case = f"{dropped} drop out"
            times = (1e3 * group.seconds[step] for step in _STEPS)
            rows.append((case, *times, group.upload_bytes))
            for name, value, wanted in (
                ("client seconds", group.client_seconds, 1.0),
                ("server seconds", group.seconds["unmask"], 2.0),
                ("bytes / packed float32", group.upload_bytes / packed, 2.1),
            ):
                ratios.append(Ratio(f"{name}, {case}", value, wanted, at_most=True))
    title = f"d = {d:,}, C = {num_classes}, groups of {size}, {_SAMPLES} images each"
    columns = ("", *(f"{step} ms" for step in _STEPS), "bytes up")
    notes = [
        f"Packed float32 with all {num_classes} classes: {packed:,} bytes. The slowest "
        "client of the group; statistics are of features at hand."
    ]
    return Result([Table(title, columns, rows)], ratios, notes)


def _packed_bytes(d: int, num_classes: int) -> int:
    """Return the bytes of the packed form of a client that has all classes."""
    Z, y = _features(d, num_classes, 0)
    y = torch.arange(len(y)) % num_classes
    return pack_statistics(Z, y, num_classes, "packed", "float32").count_bytes()


def _features(d: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    Z = torch.from_numpy(rng.uniform(0, _ZMAX, size=(_SAMPLES, d)))
    return Z, torch.from_numpy(rng.integers(num_classes, size=_SAMPLES))


class _GroupSimulation:
    """A group of clients and its server in one process, with a clock for each step.

    Parameters
    ----------
    d, num_classes, size : int
        Features, classes, and clients of the group.
    """

    def __init__(self, d: int, num_classes: int, size: int) -> None:
        clients = [str(i) for i in range(size)]
        threshold = group_threshold(size, _SHARE)
        self._shape = (d, num_classes)
        self._group = Group(clients, threshold, vector_length(d, num_classes))
        self._grid = FixedPointEncoding(FeatureMap(d), _ZMAX, _N_MAX)
        self._members: dict[int, Member] = {}
        self._sent = dict.fromkeys(self._group.clients, 0)
        self._expected = RidgeStatistics.zeros(d, num_classes)
        self.seconds = dict.fromkeys(_STEPS, 0.0)

    @property
    def client_seconds(self) -> float:
        """What the four requests take a client, the slowest in each step."""
        return sum(self.seconds[step] for step in _STEPS[:-1])

    @property
    def upload_bytes(self) -> int:
        """What a client sends."""
        return max(self._sent.values())

    def run(self, dropped: int) -> None:
        """Go through the exchanges; so many drop out after sharing their keys."""
        for i in self._group.clients:
            self._send_keys(i)
        for i in self._members:
            self._share(i)
        for i in list(self._members)[dropped:]:
            self._send_vector(i)
        for i in self._group.survivors:
            self._answer(i)
        with self._clock("unmask"):
            total = IntegerStatistics.from_vector(self._group.unmask(), *self._shape)
            stats = total.statistics(self._grid)
        same = torch.equal(stats.A, self._expected.A)
        if not same or not torch.equal(stats.b, self._expected.b):
            raise RuntimeError("The unmasked sum must be the plain one, got another.")

    def _send_keys(self, i: int) -> None:
        with self._clock("keys"):
            self._members[i] = Member(self._group.attempt)
            keys = self._members[i].public_keys()
        self._group.take_keys(i, keys)
        self._sent[i] += count_bytes(records.pack_keys(keys))

    def _share(self, i: int) -> None:
        group = self._group
        with self._clock("share"):
            sealed = self._members[i].share(i, group.keys, group.threshold)
        group.take_shares(i, sealed)
        self._sent[i] += count_bytes(records.pack_sealed(sealed))

    def _send_vector(self, i: int) -> None:
        group, grid, (d, num_classes) = self._group, self._grid, self._shape
        Z, y = _features(d, num_classes, i)
        self._expected += RidgeStatistics.of(grid.round(Z), y, num_classes)
        with self._clock("statistics"):
            vector = IntegerStatistics.of([(Z, y)], num_classes, grid).vector()
        with self._clock("mask"):
            masked = self._members[i].mask(vector, group.sealed_for(i))
        group.take_masked(i, masked)
        self._sent[i] += count_bytes(records.pack_masked(masked))

    def _answer(self, i: int) -> None:
        with self._clock("answer"):
            answer = self._members[i].answer(self._group.survivors)
        self._group.take_answer(i, answer)
        self._sent[i] += count_bytes(records.pack_answer(answer))

    @contextmanager
    def _clock(self, step: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.seconds[step] = max(self.seconds[step], seconds)
