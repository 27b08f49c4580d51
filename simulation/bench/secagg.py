"""``secagg``: what secure aggregation costs a client and the server."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.privacy.secagg import (
    FixedPointEncoding,
    Group,
    IntegerStatistics,
    Member,
    group_threshold,
)
from fed3r_app.privacy.secagg.crypto import PublicKeys
from fed3r_app.privacy.secagg.fixed_point import vector_length
from fed3r_app.wire import count_bytes, pack_statistics
from fed3r_app.wire import secagg as records
from simulation.bench.measure import Clock
from simulation.bench.result import Result
from simulation.tables import Cell

_SAMPLES, _ZMAX, _N_MAX = 120, 6.0, 1_000_000
_SHARE = 0.6
# The last is the server's.
_STEPS = ("keys", "share", "statistics", "mask", "answer", "unmask")


def run(result: Result) -> None:
    """Run a group of which no client, one, and as many as possible drop out."""
    d, num_classes, size = (160, 10, 5) if result.quick else (1280, 100, 10)
    # A client that has all classes, in the packed form.
    Z, y = _features(d, num_classes, 0)
    y = torch.arange(len(y)) % num_classes
    packed = pack_statistics(Z, y, num_classes, "packed", "float32").count_bytes()
    rows: list[tuple[Cell, ...]] = []
    for dropped in (0, 1, size - group_threshold(size, _SHARE)):
        seconds, sent = _simulate_group(d, num_classes, size, dropped)
        case, unmask = f"{dropped} drop out", seconds["unmask"]
        rows.append((case, *(1e3 * seconds[step] for step in _STEPS), sent))
        client = sum(seconds.values()) - unmask
        result.ratio(f"client seconds, {case}", client, 1.0, at_most=True)
        result.ratio(f"server seconds, {case}", unmask, 2.0, at_most=True)
        result.ratio(
            f"bytes / packed float32, {case}", sent / packed, 2.1, at_most=True
        )
    title = f"d = {d:,}, C = {num_classes}, groups of {size}, {_SAMPLES} images each"
    result.table(title, ("", *(f"{step} ms" for step in _STEPS), "bytes up"), rows)
    result.notes.append(
        f"Packed float32 with all {num_classes} classes: {packed:,} bytes. The slowest "
        "client of the group; statistics are of features at hand."
    )


def _features(d: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    Z = torch.from_numpy(rng.uniform(0, _ZMAX, size=(_SAMPLES, d)))
    return Z, torch.from_numpy(rng.integers(num_classes, size=_SAMPLES))


def _simulate_group(
    d: int, num_classes: int, size: int, dropped: int
) -> tuple[dict[str, float], int]:
    """Return the seconds of each step, and the bytes that a client sends.

    A group of clients and its server in one process; so many drop out after sharing
    their keys. The seconds are those of the slowest client in each step.
    """
    names = [str(i) for i in range(size)]
    length = vector_length(d, num_classes)
    group = Group(names, group_threshold(size, _SHARE), length)
    encoding = FixedPointEncoding(FeatureMap(d), _ZMAX, _N_MAX)
    expected = RidgeStatistics.zeros(d, num_classes)
    members: dict[int, Member] = {}
    sent, clock = dict.fromkeys(group.clients, 0), Clock()

    def make_keys() -> tuple[Member, PublicKeys]:
        member = Member(group.attempt)
        return member, member.public_keys()

    def encode(Z: Tensor, y: Tensor) -> NDArray[np.uint64]:
        return IntegerStatistics.of([(Z, y)], num_classes, encoding).vector()

    def unmask() -> RidgeStatistics:
        total = IntegerStatistics.from_vector(group.unmask(), d, num_classes)
        return total.statistics(encoding)

    for i in group.clients:
        members[i], keys = clock("keys", make_keys)
        group.take_keys(i, keys)
        sent[i] += count_bytes(records.pack_keys(keys))
    for i, member in members.items():
        sealed = clock("share", member.share, i, group.keys, group.threshold)
        group.take_shares(i, sealed)
        sent[i] += count_bytes(records.pack_sealed(sealed))
    for i in list(members)[dropped:]:
        Z, y = _features(d, num_classes, i)
        expected += RidgeStatistics.of(encoding.round(Z), y, num_classes)
        vector = clock("statistics", encode, Z, y)
        masked = clock("mask", members[i].mask, vector, group.sealed_for(i))
        group.take_masked(i, masked)
        sent[i] += count_bytes(records.pack_masked(masked))
    for i in group.survivors:
        answer = clock("answer", members[i].answer, group.survivors)
        group.take_answer(i, answer)
        sent[i] += count_bytes(records.pack_answer(answer))
    stats = clock("unmask", unmask)
    if not torch.equal(stats.A, expected.A) or not torch.equal(stats.b, expected.b):
        raise RuntimeError("The unmasked total must be the plain one, got another.")
    return {step: max(taken) for step, taken in clock.items()}, max(sent.values())
