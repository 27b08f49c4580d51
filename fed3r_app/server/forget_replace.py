"""One client of a saved run, asked once more: to forget it, or to replace its part."""

from __future__ import annotations

import time
from dataclasses import dataclass
from logging import INFO

from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import RidgeStatistics
from fed3r_app.errors import RunError
from fed3r_app.runs.ledger import ACCEPTED, REFUSED, LedgerEntry
from fed3r_app.runs.report import summary_table
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.runs.snapshots import check_settings
from fed3r_app.server.context import RunContext
from fed3r_app.server.factory import make_strategy
from fed3r_app.wire import pack_feature_map
from strategies import ClientDiscovery, ClientRegistry, CohortSampler
from strategies.messaging import stream_replies

_POLL_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class _Answer:
    """What a client sent: its statistics, the record of them, and their digest."""

    statistics: RidgeStatistics
    record: ArrayRecord
    digest: str


def revise(grid: Grid, context: RunContext) -> None:
    """Change the sums of a saved run as `forget` or `replace` asks; solve again."""
    run = SavedRun(context.directory)
    run.state.load()
    run.check_can_change()
    if context.config.forget:
        _forget(grid, context, run, context.config.forget)
    else:
        _replace(grid, context, run, context.config.replace)
    run.write_model()
    if context.directory.summary_path.is_file():
        log(INFO, "\n\n%s\n", summary_table(context.directory.read_summary()))
    log(INFO, "Results: %s", context.directory.path)


def _forget(grid: Grid, context: RunContext, run: SavedRun, client: str) -> None:
    """Take a client out; it is asked only if its contribution was not kept."""
    if client in run.snapshot.forgotten:  # the run was stopped before the model
        return
    run.check_counts(client)
    contribution = run.state.kept(run.snapshot, client)
    if contribution is None:
        answer = _ask(grid, context, run, client)
        _check_same(run, client, answer.digest)
        contribution = answer.statistics
    run.forget(client, contribution)
    log(INFO, "Client %s is forgotten.", client)


def _replace(grid: Grid, context: RunContext, run: SavedRun, client: str) -> None:
    """Put what a client has now in the place of what it had."""
    run.check_counts(client)
    old = run.state.kept(run.snapshot, client)
    if old is None:
        raise RunError(
            f"The contribution of client {client} must be at hand to be replaced, but "
            "keep-contributions was false. Forget the client, then add it again."
        )
    # What is forgotten is known by its digest; what is new must fit the others.
    settings = context.feature_fingerprint()
    check_settings({key: run.snapshot.settings.get(key) for key in settings}, settings)
    answer = _ask(grid, context, run, client)
    if answer.digest == run.snapshot.contributions[client]:
        log(INFO, "Client %s has the same data as before.", client)
        return
    names = run.snapshot.class_names
    run.state.keep(client, answer.digest, answer.record, names)
    run.replace(client, old, answer.statistics, answer.digest)
    log(INFO, "The contribution of client %s is replaced.", client)


def _check_same(run: SavedRun, client: str, digest: str) -> None:
    """Raise unless a client has sent again what is in the sums."""
    counted = run.snapshot.contributions[client]
    if digest == counted:
        return
    reason = "to be forgotten, it must send what is in the sums"
    run.state.ledger.append(LedgerEntry(client, REFUSED, digest, reason=reason))
    raise RunError(
        f"Client {client} must have the data and settings it had (digest "
        f"{counted[:12]}), got others ({digest[:12]}). Restore its images, or begin a "
        "run without it."
    )


def _ask(grid: Grid, context: RunContext, run: SavedRun, client: str) -> _Answer:
    """Return the statistics that a client has now, under the settings of the run."""
    config, feature_map = context.config, run.feature_map
    context.class_names = run.snapshot.class_names
    registry = _wait_for(grid, context, client)
    sampler = CohortSampler(
        [client], per_round=1, seed=0, max_retries=config.max_retries
    )
    zeros = RidgeStatistics.zeros(feature_map.dim, context.num_classes, context.device)
    strategy = make_strategy(context, registry, sampler, feature_map, zeros)
    records: list[ArrayRecord] = []

    def note(entry: LedgerEntry, record: ArrayRecord | None) -> None:
        if entry.outcome == ACCEPTED and record is not None:
            records.append(record)
        else:
            run.state.ledger.append(entry)

    strategy.on_reply = note
    request = context.request(pack_feature_map(feature_map))
    while not sampler.done:
        messages = strategy.configure_train(1, ArrayRecord(), request, grid)
        replies = stream_replies(grid, messages, timeout=config.round_timeout)
        strategy.aggregate_train(1, replies)
    if sampler.missing:
        reason = sampler.failures[client].rstrip(".")
        raise RunError(f"Client {client} did not send its statistics: {reason}.")
    statistics = strategy.statistics().to("cpu")
    return _Answer(statistics, records[0], strategy.contributions[client])


def _wait_for(grid: Grid, context: RunContext, client: str) -> ClientRegistry:
    """Return who is connected once a client is."""
    config = context.config
    log(INFO, "Waiting for client %s …", client)
    reception = ClientDiscovery(
        grid,
        timeout=config.round_timeout,
        max_retries=config.max_retries,
        strict=False,
    )
    deadline = time.monotonic() + config.round_timeout
    reception.gather(0)
    while client not in reception.registry.nodes:
        if time.monotonic() > deadline:
            raise RunError(
                f"Client {client} must be connected, but is not after "
                f"{config.round_timeout:g} s. Start its node."
            )
        time.sleep(_POLL_SECONDS)
        reception.welcome_newcomers()
    return reception.registry
