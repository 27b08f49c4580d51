"""``reference``: the authors' loop, written from its description, and ours.

Theirs: float32 matrices with a ones column, dense matrices from every client, a one-hot
matrix product for b, a general (LU) solve at every evaluation. Their script hands the
matrices over in memory; beside it stands the same loop with Flower's records between
client and server, as in any federation, and as ours has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor
from torch.nn.functional import one_hot

from fed3r_app.core import FeatureMap, RidgeStatistics, RunningSum, solve_ridge
from fed3r_app.wire import count_bytes, pack_statistics, unpack_contribution
from simulation.bench.inputs import Features, describe_inputs, load_features
from simulation.bench.measure import announce, timed
from simulation.bench.result import Result

_LAMBDA = 0.01
_ROUNDS = 10
_COLUMNS = ("way", "seconds", "MB sent", "error in W")


def run(result: Result) -> None:
    """Compare both on the same features, clients, rounds and threads."""
    features = load_features(result.data, limit=1000 if result.quick else None)
    Z = _with_ones(features.Z.double())
    pooled = RidgeStatistics.of(Z, features.y, features.num_classes)
    exact = solve_ridge(pooled, _LAMBDA, intercept=True)
    for mean_size in (100, 13):  # CIFAR-100's hundred clients; iNaturalist's
        clients = features.split(len(features.y) // mean_size)
        announce(f"both ways, {len(clients):,} clients")
        rows = []
        for name, loop in _LOOPS.items():
            (W, sent), seconds = timed(loop, features, clients)
            error = float((W.double() - exact).norm() / exact.norm())
            rows.append((name, seconds, sent / 1e6, error))
        title = (
            f"{len(clients)} clients in {_ROUNDS} rounds, evaluated after each, "
            f"{len(features.y):,} images, lambda {_LAMBDA}"
        )
        result.table(title, _COLUMNS, rows)
        _, (_, *theirs), (_, *ours) = rows
        for column, their, our in zip(_COLUMNS[1:], theirs, ours, strict=True):
            name = f"theirs / ours, {column}, {len(clients)} clients"
            result.ratio(name, their / our)
    notes = ["theirs: in records. The network itself is free here, for both."]
    result.notes += [*notes, describe_inputs(result.data)]


def _authors_loop(
    features: Features, clients: list[Tensor], *, in_records: bool = False
) -> tuple[Tensor, int]:
    """Return the last W (d + 1, C) and the bytes sent, all in float32."""
    d, num_classes = features.Z.shape[1] + 1, features.num_classes
    A, b = torch.zeros(d, d), torch.zeros(d, num_classes)
    sent = 0
    for start in range(_ROUNDS):
        for rows in clients[start::_ROUNDS]:
            Z = _with_ones(features.Z[rows])
            Y = one_hot(features.y[rows], num_classes).float()
            A_k, b_k = Z.T @ Z, Z.T @ Y
            if in_records:
                A_k, b_k = _send(A_k, b_k)
            sent += 4 * (A_k.numel() + b_k.numel())
            A, b = A + A_k, b + b_k
        W = torch.linalg.solve(A + _LAMBDA * torch.eye(d), b)
        W = W / W[:-1].norm(dim=0).clamp(min=1e-12)
        _evaluate(features, W)
    return W, sent


def _our_loop(features: Features, clients: list[Tensor]) -> tuple[Tensor, int]:
    """Return the last W (d + 1, C) and the bytes sent, through real records."""
    feature_map = FeatureMap(features.Z.shape[1], intercept=True)
    num_classes, sent = features.num_classes, 0
    total = RunningSum(RidgeStatistics.zeros(feature_map.dim, num_classes))
    for start in range(_ROUNDS):
        for rows in clients[start::_ROUNDS]:
            Z = feature_map(features.Z[rows])
            record = pack_statistics(Z, features.y[rows], num_classes)
            sent += count_bytes(RecordDict({"arrays": record}))
            total.add(unpack_contribution(record))
        W = solve_ridge(total.value(), _LAMBDA, intercept=True)
        _evaluate(features, W)
    return W, sent


_LOOPS: dict[str, Callable[[Features, list[Tensor]], tuple[Tensor, int]]] = {
    "authors' loop, in memory": _authors_loop,
    "authors' loop, in records": partial(_authors_loop, in_records=True),
    "ours": _our_loop,
}


def _send(*matrices: Tensor) -> tuple[Tensor, ...]:
    """Return matrices after they were serialised and read again."""
    arrays = {str(i): Array(matrix.numpy()) for i, matrix in enumerate(matrices)}
    return tuple(torch.from_numpy(a.numpy()) for a in ArrayRecord(arrays).values())


def _evaluate(features: Features, W: Tensor) -> float:
    scores = _with_ones(features.Z_test).to(W.dtype) @ W
    return float((scores.argmax(dim=1) == features.y_test).double().mean())


def _with_ones(Z: Tensor) -> Tensor:
    return torch.cat([Z, Z.new_ones(len(Z), 1)], dim=1)
