"""The audit of a run: whether statistics, ledger, kept files and model agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fed3r_app.core import RidgeStatistics, RunningSum
from fed3r_app.runs.contributions import leftover_contributions
from fed3r_app.runs.ledger import forgotten_clients, standing_entries
from fed3r_app.runs.model_file import SavedModel, load_model
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.words import first_names, plural

_EPS = torch.finfo(torch.float64).eps
_MAX_NAMED = 5


class Finding(NamedTuple):
    """The result of one check."""

    ok: bool
    text: str


def audit(run: SavedRun) -> Iterator[Finding]:
    """Yield the result of each check that applies to a run."""
    snapshot = run.snapshot
    clients, stats = len(snapshot.contributions), snapshot.statistics
    held = f"{plural(clients, 'client')}, {plural(stats.n, 'image')}"
    yield Finding(True, f"the statistics are whole: {held}")
    if not run.config.dp_epsilon:  # noise is of no images
        yield _check_statistics(run)
    yield from _check_ledger(run)
    yield from _check_kept(run)
    yield from _check_model(run)
    yield from _check_summary(run)


def _check_statistics(run: SavedRun) -> Finding:
    """Check that the statistics can be those of images at all."""
    try:
        run.check_consistent(run.snapshot.statistics)
    except ValueError as error:
        return Finding(False, f"the statistics are of no images at all: {error}")
    return Finding(True, "the statistics are consistent")


def _check_ledger(run: SavedRun) -> Iterator[Finding]:
    """Check that the ledger says of each client what the statistics say."""
    snapshot, stats = run.snapshot, run.snapshot.statistics
    entries = run.state.ledger.entries()
    standing = standing_entries(entries)
    digests = {client: entry.digest for client, entry in standing.items()}
    saved = snapshot.contributions
    differences = {
        "accepted by the ledger, not in the statistics (resume asks them again)": (
            digests.keys() - saved.keys()
        ),
        "in the statistics, not accepted by the ledger": saved.keys() - digests.keys(),
        "in the statistics with another digest than in the ledger": {
            client
            for client in digests.keys() & saved.keys()
            if digests[client] != saved[client]
        },
    }
    for what, clients in differences.items():
        if clients:
            yield Finding(False, f"{what}: {_named(sorted(clients))}")
    if digests == saved:
        yield Finding(True, "the ledger accepted just the clients in the statistics")
        known = [e.num_samples for e in standing.values() if e.num_samples is not None]
        if len(known) == len(standing):  # else a line was written after a crash
            images = plural(sum(known), "image")
            counts = f"{images} by the ledger, {stats.n} in the statistics"
            yield Finding(sum(known) == stats.n, counts)
    if forgotten_clients(entries) != set(snapshot.forgotten):
        yield Finding(False, "ledger and statistics differ in who was forgotten")
    elif snapshot.forgotten:
        yield Finding(True, f"forgotten: {_named(snapshot.forgotten)}")


def _check_kept(run: SavedRun) -> Iterator[Finding]:
    """Check that the contributions that were kept add up to the statistics."""
    snapshot, folder = run.snapshot, run.directory.contributions_path
    left = leftover_contributions(folder, snapshot.contributions)
    if left:
        names = [path.name for path in left]
        yield Finding(
            False, f"files of contributions not in the statistics: {_named(names)}"
        )
    if strangers := run.state.sketches.leftover(snapshot.contributions):
        text = f"sketches of contributions not in the statistics: {_named(strangers)}"
        yield Finding(False, text)
    if not run.config.keep_contributions:
        return
    stats, missing = snapshot.statistics, []
    total = RunningSum(RidgeStatistics.zeros(stats.d, stats.num_classes))
    for client in snapshot.contributions:
        if (contribution := run.state.kept(snapshot, client)) is not None:
            total.add(contribution)
        else:
            missing.append(client)
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
            by = f"{name} by {float(error.max()):.2g}"
            return f"the kept contributions differ from the statistics in {by}"
    return None


def _check_model(run: SavedRun) -> Iterator[Finding]:
    """Check that the model is the solution of the statistics as they are now."""
    if run.is_fine_tuned or not run.directory.model_path.is_file():
        return
    if _is_solution(load_model(run.directory.model_path), run):
        yield Finding(True, "the model is the solution of the statistics")
    else:
        text = "the model is not the solution of the statistics: run fed3r solve"
        yield Finding(False, text)


def _is_solution(model: SavedModel, run: SavedRun) -> bool:
    """Return whether a model differs from the solution by no more than rounding."""
    stats, lam = run.snapshot.statistics, model.ridge_lambda
    if not stats.n:
        return False
    expected = run.solve("auto" if lam is None else lam)
    if not torch.equal(model.present, expected.present):
        return False
    # Two solutions may differ by the condition number times eps.
    condition = 1.0 if lam is None else float(stats.A.norm()) / lam + 1
    tolerance = min(max(1e-9, 100 * _EPS * condition), 1e-3)
    ours, theirs = _weights_and_bias(model), _weights_and_bias(expected)
    return len(ours) == len(theirs) and all(
        float((one - other).norm()) <= tolerance * float(other.norm())
        for one, other in zip(ours, theirs, strict=True)
    )


def _weights_and_bias(model: SavedModel) -> list[Tensor]:
    bias = model.classifier.bias
    return [model.W] if bias is None else [model.W, bias]


def _check_summary(run: SavedRun) -> Iterator[Finding]:
    """Check that the summary is of these statistics."""
    if not run.directory.summary_path.is_file():
        return
    summary, snapshot = run.directory.read_summary(), run.snapshot
    clients, images = summary.get("clients_counted"), summary.get("num_samples")
    if (clients, images) == (len(snapshot.contributions), snapshot.statistics.n):
        yield Finding(True, "the summary is of these statistics")
    else:
        other = f"clients {clients}, images {images}"
        yield Finding(False, f"the summary is of other statistics: {other}")


def _named(names: Sequence[str]) -> str:
    return f"{len(names)}: {first_names(names, _MAX_NAMED)}"
