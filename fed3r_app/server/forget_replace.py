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
from fed3r_app.runs.ledger import ACCEPTED, REFUSED, Entry
from fed3r_app.runs.report import summary_table
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.runs.snapshots import check_settings
from fed3r_app.server.context import Session
from fed3r_app.server.factory import make_strategy
from fed3r_app.wire import pack_feature_map
from strategies import Cohorts, Reception, Roster
from strategies.messaging import exchange

_POLL_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class _Answer:
    """What a client sent: its statistics, the record of them, and their digest."""

    statistics: RidgeStatistics
    record: ArrayRecord
    digest: str


def revise(grid: Grid, session: Session) -> None:
    """Change the sums of a saved run as `forget` or `replace` asks; solve again."""
    run = SavedRun(session.directory)
    run.state.load()
    run.check_can_change()
    if session.config.forget:
        _forget(grid, session, run, session.config.forget)
    else:
        _replace(grid, session, run, session.config.replace)
    run.write_model()
    if session.directory.summary_path.is_file():
        log(INFO, "\n\n%s\n", summary_table(session.directory.read_summary()))
    log(INFO, "Results: %s", session.directory.path)


def _forget(grid: Grid, session: Session, run: SavedRun, client: str) -> None:
    """Take a client out; it is asked only if its contribution was not kept."""
    if client in run.snapshot.forgotten:  # the run was stopped before the model
        return
    run.check_counts(client)
    contribution = run.state.kept(run.snapshot, client)
    if contribution is None:
        answer = _ask(grid, session, run, client)
        _check_same(run, client, answer.digest)
        contribution = answer.statistics
    run.forget(client, contribution)
    log(INFO, "Client %s is forgotten.", client)


def _replace(grid: Grid, session: Session, run: SavedRun, client: str) -> None:
    """Put what a client has now in the place of what it had."""
    run.check_counts(client)
    old = run.state.kept(run.snapshot, client)
    if old is None:
        raise RunError(
            f"The contribution of client {client} must be at hand to be replaced, but "
            "keep-contributions was false. Forget the client, then add it again."
        )
    # What is forgotten is known by its digest; what is new must fit the others.
    settings = session.what_features_depend_on()
    check_settings({key: run.snapshot.settings.get(key) for key in settings}, settings)
    answer = _ask(grid, session, run, client)
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
    run.state.ledger.append(Entry(client, REFUSED, digest, reason=reason))
    raise RunError(
        f"Client {client} must have the data and settings it had (digest "
        f"{counted[:12]}), got others ({digest[:12]}). Restore its images, or begin a "
        "run without it."
    )


def _ask(grid: Grid, session: Session, run: SavedRun, client: str) -> _Answer:
    """Return the statistics that a client has now, under the settings of the run."""
    config, feature_map = session.config, run.feature_map
    session.class_names = run.snapshot.class_names
    roster = _wait_for(grid, session, client)
    cohorts = Cohorts([client], per_round=1, seed=0, max_retries=config.max_retries)
    zeros = RidgeStatistics.zeros(feature_map.dim, session.num_classes, session.device)
    strategy = make_strategy(session, roster, cohorts, feature_map, zeros)
    records: list[ArrayRecord] = []

    def note(entry: Entry, record: ArrayRecord | None) -> None:
        if entry.outcome == ACCEPTED and record is not None:
            records.append(record)
        else:
            run.state.ledger.append(entry)

    strategy.on_reply = note
    question = session.question(pack_feature_map(feature_map))
    while not cohorts.done:
        messages = strategy.configure_train(1, ArrayRecord(), question, grid)
        replies = exchange(grid, messages, timeout=config.round_timeout)
        strategy.aggregate_train(1, replies)
    if cohorts.missing:
        reason = cohorts.failures[client].rstrip(".")
        raise RunError(f"Client {client} did not send its statistics: {reason}.")
    statistics = strategy.statistics().to("cpu")
    return _Answer(statistics, records[0], strategy.contributions[client])


def _wait_for(grid: Grid, session: Session, client: str) -> Roster:
    """Return who is connected once a client is."""
    config = session.config
    log(INFO, "Waiting for client %s …", client)
    reception = Reception(
        grid,
        timeout=config.round_timeout,
        max_retries=config.max_retries,
        strict=False,
    )
    deadline = time.monotonic() + config.round_timeout
    reception.gather(0)
    while client not in reception.roster.nodes:
        if time.monotonic() > deadline:
            raise RunError(
                f"Client {client} must be connected, but is not after "
                f"{config.round_timeout:g} s. Start its node."
            )
        time.sleep(_POLL_SECONDS)
        reception.welcome_newcomers()
    return reception.roster
