"""``solve``: time and memory of the server's linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fed3r_app.core import RidgeStatistics, select_lambda, solve_ridge
from simulation.bench.measure import announce, best_seconds, measure
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_LAMBDA = 1.0
_ROUND_ROWS = 130  # ten clients of iNaturalist
_LIMIT_GB = 4.0
_SIZES = ((1280, 2028), (5000, 1203), (10_000, 1203))
_QUICK_SIZES = ((128, 20), (256, 20))


def run(options: Options) -> Result:
    """Compare solving, choosing lambda, and solving again after one more round."""
    alone = not options.quick
    sizes = _QUICK_SIZES if options.quick else _SIZES
    rows: list[tuple[Cell, ...]] = []
    ratios: list[Ratio] = []
    for d, num_classes in sizes:
        where = f"d = {d:,}, C = {num_classes:,}"
        announce(f"Cholesky, LU and GCV, {where}")
        ways = {
            way: measure(time_way, way, d, num_classes, isolated=alone) for way in _WAYS
        }
        for way, taken in ways.items():  # the peak includes the statistics
            peak, extra = taken.peak_bytes / 1e9, taken.extra_bytes / 8 / d**2
            rows.append((where, way, taken.value, peak, extra))
        for way in ("Cholesky", "GCV"):
            peak = ways[way].peak_bytes / 1e9
            ratios.append(Ratio(f"{way} GB, {where}", peak, _LIMIT_GB, at_most=True))
        speedup = ways["LU"].value / ways["Cholesky"].value
        ratios.append(Ratio(f"LU / Cholesky, {where}", speedup))
    columns = ("size", "way", "seconds", "peak GB", "times A")
    again, more = _compare_updates(sizes, alone)
    solving = Table("solve: each in a process of its own", columns, rows)
    return Result([solving, again], ratios + more, [_NOTE])


_NOTE = (
    "Rank update: (A + R'R + lam I)^-1 (b + R'S) from the factor and solution before. "
    "It wins while a round brings fewer rows than about d / 2, with lambda fixed; a "
    "run evaluates 4 to 20 times in all, so brings more, and solves anew."
)


def solve_by_lu(stats: RidgeStatistics) -> Tensor:
    """Return W by a general solver, as the authors use."""
    A = stats.A.clone()
    A.diagonal().add_(_LAMBDA)
    W: Tensor = torch.linalg.solve(A, stats.b)
    return W


_WAYS: dict[str, Callable[[RidgeStatistics], object]] = {
    "Cholesky": lambda stats: solve_ridge(stats, _LAMBDA),
    "LU": solve_by_lu,
    "GCV": select_lambda,
}


def time_way(name: str, d: int, num_classes: int) -> float:
    """Return the seconds of one of the ways."""
    stats = draw_statistics(d, num_classes)
    return best_seconds(lambda: _WAYS[name](stats), 1 if d > 2000 else 3)


def draw_statistics(d: int, num_classes: int) -> RidgeStatistics:
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


def _compare_updates(
    sizes: Sequence[tuple[int, int]], alone: bool
) -> tuple[Table, list[Ratio]]:
    """Return solving anew against updating the solution, by rows of a round."""
    rows: list[tuple[Cell, ...]] = []
    ratios: list[Ratio] = []
    for d, num_classes in sizes:
        announce(f"solving again after a round, d = {d:,}")
        taken = measure(time_updates, d, num_classes, isolated=alone)
        where, peak = f"d = {d:,}, C = {num_classes:,}", taken.peak_bytes / 1e9
        for m, anew, updated in taken.value:
            rows.append((where, m, anew, updated, anew / updated, peak))
            if m == _ROUND_ROWS:
                name = f"anew / update, {m} rows, {where}"
                ratios.append(Ratio(name, anew / updated))
    columns = ("size", "rows", "anew s", "rank update s", "anew / update", "peak GB")
    return Table("one more round, both ways in one process", columns, rows), ratios


def time_updates(d: int, num_classes: int) -> list[tuple[int, float, float]]:
    """Return the rows of a round, and the seconds to solve anew and to update."""
    repeats = 1 if d > 2000 else 3
    stats = draw_statistics(d, num_classes)
    A = stats.A.clone()
    A.diagonal().add_(_LAMBDA)
    L = torch.linalg.cholesky(A)
    del A
    W = torch.cholesky_solve(stats.b, L)
    seconds = []
    for m in (_ROUND_ROWS // 10, _ROUND_ROWS, d // 4, d // 2, d):
        R = torch.randn(m, d, dtype=torch.float64)
        S = torch.randn(m, num_classes, dtype=torch.float64)
        anew = best_seconds(partial(_solve_anew, stats, R, S), repeats)
        updated = best_seconds(partial(update, L, W, R, S), repeats)
        seconds.append((m, anew, updated))
    return seconds


def _solve_anew(stats: RidgeStatistics, R: Tensor, S: Tensor) -> Tensor:
    more = RidgeStatistics(
        torch.addmm(stats.A, R.T, R), torch.addmm(stats.b, R.T, S), stats.counts
    )
    return solve_ridge(more, _LAMBDA, normalize=False)


def update(L: Tensor, W: Tensor, R: Tensor, S: Tensor) -> Tensor:
    """Return the solution with rows R (m, d), S (m, C) more, by Woodbury's identity."""
    G = torch.cholesky_solve(R.T, L)  # (LL')^-1 R'
    small = R @ G
    small.diagonal().add_(1.0)
    # W + G S - G (I + R G)^-1 R (W + G S) = W + G (I + R G)^-1 (S - R W)
    step: Tensor = G @ torch.linalg.solve(small, S - R @ W)
    return W + step
