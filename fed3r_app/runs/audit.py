"""The audit of a run: whether statistics, ledger, kept files and model agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fed3r_app.core import Limits, RidgeStatistics, RunningSum, check_contribution
from fed3r_app.runs.contributions import leftover_contributions
from fed3r_app.runs.ledger import forgotten_clients, standing_entries
from fed3r_app.runs.model_file import SavedModel, load_model
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.runs.snapshots import Snapshot

_EPS = torch.finfo(torch.float64).eps


_MAX_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    ok: bool
    text: str


def audit(run: SavedRun) -> Iterator[Finding]:
    """Yield what each check comes to; what does not apply to a run is not checked."""
    snapshot = run.snapshot
    clients, stats = len(snapshot.contributions), snapshot.statistics
    yield Finding(
        True, f"the statistics are whole: {clients} clients, {stats.n} images"
    )
    if not run.config.dp_epsilon:  # noise is of no images
        yield _check_sums(run)
    yield from _check_ledger(run)
    yield from _check_kept(run)
    yield from _check_model(run)
    yield from _check_summary(run)


def _check_sums(run: SavedRun) -> Finding:
    """Check that the statistics can be those of images at all."""
    # float64 sums over many clients are rounded more often than one client's.
    half = run.config.upload_dtype == "float16"
    dtype = torch.float16 if half else torch.float32
    try:
        check_contribution(run.snapshot.statistics, Limits(), dtype)
    except ValueError as error:
        return Finding(False, f"the statistics are of no images at all: {error}")
    return Finding(True, "the statistics are consistent")


def _check_ledger(run: SavedRun) -> Iterator[Finding]:
    """Check that the ledger says of each client what the statistics say."""
    snapshot = run.snapshot
    entries = run.state.ledger.entries()
    standing = standing_entries(entries)
    digests = {client: entry.digest for client, entry in standing.items()}
    unsaved = sorted(digests.keys() - snapshot.contributions.keys())
    unknown = sorted(snapshot.contributions.keys() - digests.keys())
    other = sorted(
        client
        for client in digests.keys() & snapshot.contributions.keys()
        if digests[client] != snapshot.contributions[client]
    )
    for names, what in (
        (
            unsaved,
            "accepted by the ledger, not in the statistics (resume asks them again)",
        ),
        (unknown, "in the statistics, not accepted by the ledger"),
        (other, "in the statistics with another digest than in the ledger"),
    ):
        if names:
            yield Finding(False, f"{what}: {_named(names)}")
    if not (unsaved or unknown or other):
        yield Finding(True, "the ledger accepted just the clients in the statistics")
        yield from _check_number(snapshot, [e.num_samples for e in standing.values()])
    if forgotten_clients(entries) != set(snapshot.forgotten):
        yield Finding(False, "ledger and statistics differ in who was forgotten")
    elif snapshot.forgotten:
        yield Finding(True, f"forgotten: {_named(snapshot.forgotten)}")


def _check_number(
    snapshot: Snapshot, num_samples: list[int | None]
) -> Iterator[Finding]:
    """Check that the images in the statistics are as many as those accepted."""
    known = [number for number in num_samples if number is not None]
    if len(known) < len(num_samples):
        return  # a line of the ledger was written after a crash
    ok, n = sum(known) == snapshot.statistics.n, snapshot.statistics.n
    yield Finding(ok, f"{sum(known)} images by the ledger, {n} in the statistics")


def _check_kept(run: SavedRun) -> Iterator[Finding]:
    """Check that the contributions that were kept add up to the statistics."""
    snapshot, folder = run.snapshot, run.directory.contributions_path
    left = leftover_contributions(folder, snapshot.contributions)
    if left:
        names = [path.name for path in left]
        yield Finding(
            False, f"files of contributions not in the statistics: {_named(names)}"
        )
    if not run.config.keep_contributions:
        return
    stats = snapshot.statistics
    total, missing = RunningSum(RidgeStatistics.zeros(stats.d, stats.num_classes)), []
    for client in snapshot.contributions:
        contribution = run.state.kept(snapshot, client)
        if contribution is None:
            missing.append(client)
        else:
            total.add(contribution)
    if missing:
        yield Finding(False, f"contributions not kept: {_named(missing)}")
        return
    off = _difference(total.value(), stats, len(snapshot.contributions))
    yield Finding(off is None, off or "the kept contributions add up to the statistics")


def _difference(
    total: RidgeStatistics, stats: RidgeStatistics, clients: int
) -> str | None:
    """Return in what two statistics differ by more than rounding, or None."""
    if not torch.equal(total.counts, stats.counts):
        return "the kept contributions have other class counts than the statistics"
    # Sums of so many terms in another order, and of n rows each.
    tolerance = 10 * (clients + stats.n) * _EPS
    scale = stats.A.diagonal().sqrt()
    for name, bound in (
        ("A", torch.outer(scale, scale)),
        ("b", torch.outer(scale, stats.counts.double().sqrt())),
    ):
        error = (getattr(total, name) - getattr(stats, name)).abs()
        # |A_ij| <= sqrt(A_ii A_jj) and |b_ic| <= sqrt(A_ii n_c).
        if bool((error > tolerance * bound + tolerance * bound.max()).any()):
            size = float(error.max())
            return (
                f"the kept contributions differ from the statistics in {name} by "
                f"{size:.2g}"
            )
    return None


def _check_model(run: SavedRun) -> Iterator[Finding]:
    """Check that the model is the solution of the statistics as they are now."""
    if run.is_fine_tuned or not run.directory.model_path.is_file():
        return
    model = load_model(run.directory.model_path)
    expected = _solution(run, model)
    ok = expected is not None and bool(torch.equal(model.present, expected.present))
    if ok and expected is not None:
        error = float((model.W - expected.W).norm() / expected.W.norm())
        ok = error <= _solver_tolerance(run.snapshot.statistics, model.ridge_lambda)
    text = "the model is the solution of the statistics"
    if not ok:
        text = "the model is not the solution of the statistics: run fed3r solve"
    yield Finding(ok, text)


def _solution(run: SavedRun, model: SavedModel) -> SavedModel | None:
    if not run.snapshot.statistics.n:
        return None
    return run.solve(model.ridge_lambda if model.ridge_lambda is not None else "auto")


def _solver_tolerance(stats: RidgeStatistics, lam: float | None) -> float:
    """Return how far two solutions may differ: the condition number times eps."""
    condition = 1.0 if lam is None else float(stats.A.norm()) / lam + 1
    return min(max(1e-9, 100 * _EPS * condition), 1e-3)


def _check_summary(run: SavedRun) -> Iterator[Finding]:
    """Check that the summary speaks of these statistics."""
    if not run.directory.summary_path.is_file():
        return
    summary, snapshot = run.directory.read_summary(), run.snapshot
    said = (summary.get("clients_counted"), summary.get("num_samples"))
    ok = said == (len(snapshot.contributions), snapshot.statistics.n)
    text = "the summary is of these statistics"
    if not ok:
        text = (
            f"the summary is of other statistics: {said[0]} clients, {said[1]} images"
        )
    yield Finding(ok, text)


def _named(names: list[str] | tuple[str, ...]) -> str:
    more = ", …" if len(names) > _MAX_NAMED else ""
    return f"{len(names)}: {', '.join(names[:_MAX_NAMED])}{more}"
