"""``solve``: time and memory of the server's linear algebra."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fed3r_app.core import RidgeStatistics, select_lambda, solve_ridge
from simulation.bench.measure import best_seconds
from simulation.bench.result import Result

_LAMBDA = 1.0
_ROUND_ROWS = 130  # ten clients of iNaturalist
_LIMIT_GB = 4.0
_SIZES = ((1280, 2028), (5000, 1203), (10_000, 1203))
_QUICK_SIZES = ((128, 20), (256, 20))
_NOTE = (
    "Rank update: (A + R'R + lam I)^-1 (b + R'S) from the factor and solution before. "
    "It wins while a round brings fewer rows than about d / 2, with lambda fixed; a "
    "run evaluates 4 to 20 times in all, so brings more, and solves anew."
)


def run(result: Result) -> None:
    """Compare solving, choosing lambda, and solving again after one more round."""
    solved, updated = [], []
    for d, num_classes in _QUICK_SIZES if result.quick else _SIZES:
        where = f"d = {d:,}, C = {num_classes:,}"
        for way in _WAYS:
            taken = result.measure(f"{way}, {where}", time_way, way, d, num_classes)
            peak = taken.peak_bytes / 1e9  # includes the statistics
            solved.append((where, way, taken.value, peak))
            if way != "LU":
                result.ratio(f"{way} GB, {where}", peak, _LIMIT_GB, at_most=True)
        step = f"solving again after a round, {where}"
        taken = result.measure(step, time_updates, d, num_classes)
        peak = taken.peak_bytes / 1e9
        for m, anew, update in taken.value:
            updated.append((where, m, anew, update, anew / update, peak))
    title = "solve: each in a process of its own"
    result.table(title, ("size", "way", "seconds", "peak GB"), solved)
    columns = ("size", "rows", "anew s", "rank update s", "anew / update", "peak GB")
    result.table("one more round, both ways in one process", columns, updated)
    result.notes.append(_NOTE)


def _solve_by_lu(stats: RidgeStatistics) -> Tensor:
    """Return W by a general solver, as the authors use."""
    A = stats.A.clone()
    A.diagonal().add_(_LAMBDA)
    W: Tensor = torch.linalg.solve(A, stats.b)
    return W


_WAYS: dict[str, Callable[[RidgeStatistics], object]] = {
    "Cholesky": lambda stats: solve_ridge(stats, _LAMBDA),
    "LU": _solve_by_lu,
    "GCV": select_lambda,
}


def time_way(name: str, d: int, num_classes: int) -> float:
    """Return the seconds of one of the ways."""
    return best_seconds(_repeats(d), _WAYS[name], _draw_statistics(d, num_classes))


def _repeats(d: int) -> int:
    return 1 if d > 2000 else 3


def _draw_statistics(d: int, num_classes: int) -> RidgeStatistics:
    """Return statistics of 2 d drawn samples, made in chunks."""
    random = torch.Generator().manual_seed(0)
    stats = RidgeStatistics.zeros(d, num_classes)
    centres = torch.randn(num_classes, d, dtype=torch.float64, generator=random)
    for _ in range(4):
        y = torch.randint(num_classes, (d // 2,), generator=random)
        Z = torch.randn(d // 2, d, dtype=torch.float64, generator=random)
        Z += centres[y] / 4
        stats.A.addmm_(Z.T, Z)
        stats.b.T.index_add_(0, y, Z)
        stats.counts.add_(torch.bincount(y, minlength=num_classes))
    return stats


def time_updates(d: int, num_classes: int) -> list[tuple[int, float, float]]:
    """Return the rows of a round, and the seconds to solve anew and to update."""
    stats = _draw_statistics(d, num_classes)
    A = stats.A.clone()
    A.diagonal().add_(_LAMBDA)
    L = torch.linalg.cholesky(A)
    del A
    W = torch.cholesky_solve(stats.b, L)
    seconds = []
    for m in (_ROUND_ROWS // 10, _ROUND_ROWS, d // 4, d // 2, d):
        R = torch.randn(m, d, dtype=torch.float64)
        S = torch.randn(m, num_classes, dtype=torch.float64)
        anew = best_seconds(_repeats(d), _solve_anew, stats, R, S)
        seconds.append((m, anew, best_seconds(_repeats(d), _update, L, W, R, S)))
    return seconds


def _solve_anew(stats: RidgeStatistics, R: Tensor, S: Tensor) -> Tensor:
    A, b = torch.addmm(stats.A, R.T, R), torch.addmm(stats.b, R.T, S)
    more = RidgeStatistics(A, b, stats.counts)
    return solve_ridge(more, _LAMBDA, normalize=False)


def _update(L: Tensor, W: Tensor, R: Tensor, S: Tensor) -> Tensor:
    """Return the solution with rows R (m, d), S (m, C) more, by Woodbury's identity."""
    G = torch.cholesky_solve(R.T, L)  # (LL')^-1 R'
    small = R @ G
    small.diagonal().add_(1.0)
    # W + G S - G (I + R G)^-1 R (W + G S) = W + G (I + R G)^-1 (S - R W)
    step: Tensor = G @ torch.linalg.solve(small, S - R @ W)
    return W + step
