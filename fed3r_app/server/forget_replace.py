"""One client of a saved run, asked once more: to forget it, or to replace its part."""

from __future__ import annotations

import time
from dataclasses import replace
from logging import INFO, WARNING
from typing import NamedTuple, NoReturn

import torch
from flwr.app import ArrayRecord
from flwr.common.logger import log

from fed3r_app.core import Contribution, RidgeStatistics
from fed3r_app.errors import RunError
from fed3r_app.runs.ledger import ACCEPTED, REFUSED, Ledger, LedgerEntry
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.runs.report import summary_table
from fed3r_app.runs.saved_run import SavedRun
from fed3r_app.runs.snapshots import check_settings
from fed3r_app.server.client_evaluation import evaluate_at_clients, evaluation_values
from fed3r_app.server.context import RunContext
from fed3r_app.server.factory import make_accumulator, make_strategy
from fed3r_app.wire import pack_feature_map
from strategies import ClientDiscovery, CohortSampler, NodeNames, Traffic

_POLL_SECONDS = 1.0


class _Answer(NamedTuple):
    """What a client sent: its statistics, the record of them, and what else it said."""

    statistics: RidgeStatistics
    record: ArrayRecord
    entry: LedgerEntry


def forget_or_replace(context: RunContext) -> None:
    """Forget or replace a client of a saved run, and solve it again."""
    run = SavedRun(context.directory)
    run.state.load()
    run.check_can_change()
    if context.config.forget:
        _forget(context, run, context.config.forget)
    else:
        _replace(context, run, context.config.replace)
    model = run.write_model()
    if context.directory.summary_path.is_file():
        if model:
            _evaluate(context, run, model)
        log(INFO, "\n\n%s\n", summary_table(context.directory.read_summary()))
    log(INFO, "Results: %s", context.directory.path)


def _evaluate(context: RunContext, run: SavedRun, model: SavedModel) -> None:
    """Evaluate the new model where the clients have test images, as the run did."""
    if not (context.data.is_local or context.config.client_evaluation):
        return
    if not context.has_clients:  # none had to be asked
        context.class_names = run.snapshot.class_names
        _discover(context)
    context.registry.leave_out(
        set(context.registry.clients) - run.snapshot.contributions.keys()
    )
    newcomers = context.discovery.admit_newcomers
    evaluation = evaluate_at_clients(context, model, Traffic(), newcomers)
    if evaluation:
        summary = context.directory.read_summary()
        summary |= evaluation_values(context, evaluation, summary["accuracy"])
        context.directory.write_summary(summary)


def _forget(context: RunContext, run: SavedRun, client: str) -> None:
    """Take a client out; it is asked only if its contribution was not kept."""
    if client in run.snapshot.forgotten:  # the run was stopped before the model
        return
    run.check_counts(client)
    if not run.forget(client):
        answer = _ask(context, run, client)
        _check_same(run, answer)
        run.forget(client, answer.statistics)
    log(INFO, "Client %s is forgotten.", client)


def _replace(context: RunContext, run: SavedRun, client: str) -> None:
    """Put what a client has now in the place of what it had."""
    run.check_counts(client)
    if run.state.kept(run.snapshot, client) is None:
        raise RunError(
            f"The contribution of client {client} must be at hand to be replaced, but "
            "keep-contributions was false. Forget the client, then add it again."
        )
    # What is forgotten is known by its digest; what is new must fit the others.
    settings = context.feature_fingerprint()
    check_settings({key: run.snapshot.settings.get(key) for key in settings}, settings)
    answer = _ask(context, run, client)
    digest = answer.entry.digest
    if digest == run.snapshot.contributions[client]:
        log(INFO, "Client %s has the same data as before.", client)
        return
    names = run.snapshot.class_names
    run.state.keep(answer.entry, answer.record, answer.statistics, names)
    run.replace(answer.statistics, answer.entry)
    log(INFO, "The contribution of client %s is replaced.", client)


def _check_same(run: SavedRun, answer: _Answer) -> None:
    """Raise unless a client has sent again what is in the statistics."""
    client, digest = answer.entry.client, answer.entry.digest
    counted = run.snapshot.contributions[client]
    if digest != counted:
        _refuse(
            run,
            answer.entry,
            f"Client {client} must have the data and settings it had (digest "
            f"{counted[:12]}), got others ({digest[:12]}). Restore its images, or "
            "begin a run without it.",
        )
    sketches = run.state.sketches
    known = sketches.find(client, digest)
    if known is None:
        log(
            WARNING,
            "Whether client %s has sent what is in the statistics is known by its own "
            "digest alone: the run was begun by a version that kept no sketch of it.",
            client,
        )
        return
    again = sketches.sketch(answer.statistics, run.snapshot.class_names)
    if what := known.difference(again, getattr(torch, run.config.upload_dtype)):
        _refuse(
            run,
            answer.entry,
            f"Client {client} must send the statistics it sent before, got {what} that "
            "differ under the digest of then. Does it compute on another device or "
            "with other versions? Else it does not send what its images are. Nothing "
            "was changed: begin a run without it.",
        )


def _refuse(run: SavedRun, entry: LedgerEntry, reason: str) -> NoReturn:
    """Write down why what came is not what is to be forgotten, and raise that."""
    run.state.ledger.append(replace(entry, outcome=REFUSED, reason=reason))
    raise RunError(reason)


class _ReplyJournal:
    """Keeps the record of an accepted reply, and writes all others to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.accepted: tuple[ArrayRecord, LedgerEntry] | None = None

    def record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None,
        contribution: Contribution | None = None,
    ) -> None:
        """Keep or write a reply."""
        if entry.outcome == ACCEPTED and record is not None:
            self.accepted = record, entry
        else:
            self._ledger.append(entry)


def _ask(context: RunContext, run: SavedRun, client: str) -> _Answer:
    """Return the statistics that a client has now, under the settings of the run."""
    config, feature_map = context.config, run.feature_map
    context.class_names = run.snapshot.class_names
    _wait_for(context, client)
    retries = config.max_retries
    sampler = CohortSampler([client], per_round=1, seed=0, max_retries=retries)
    journal = _ReplyJournal(run.state.ledger)
    accumulator = make_accumulator(context, feature_map)
    strategy = make_strategy(
        context,
        sampler,
        accumulator,
        journal=journal,
        parity=context.parity,
        # It may come back as another node.
        newcomers=lambda: {client} & {*context.discovery.admit_newcomers()},
    )
    request = context.request(pack_feature_map(feature_map))
    rounds = strategy.rounds(context.grid, ArrayRecord(), request, config.round_timeout)
    for _ in rounds:
        pass
    if sampler.missing or journal.accepted is None:
        reason = sampler.failures[client].rstrip(".")
        raise RunError(f"Client {client} did not send its statistics: {reason}.")
    statistics = accumulator.release().to("cpu")
    return _Answer(statistics, *journal.accepted)


def _wait_for(context: RunContext, client: str) -> None:
    """Wait until a client is connected."""
    timeout = context.config.round_timeout
    log(INFO, "Waiting for client %s …", client)
    deadline = time.monotonic() + timeout
    _discover(context)
    while client not in context.registry.nodes:
        if time.monotonic() > deadline:
            raise RunError(
                f"Client {client} must be connected, but is not after "
                f"{timeout:g} s. Start its node."
            )
        time.sleep(_POLL_SECONDS)
        context.discovery.admit_newcomers()


def _discover(context: RunContext) -> None:
    """Find the clients that are connected."""
    timeout, retries = context.config.round_timeout, context.config.max_retries
    context.discovery = ClientDiscovery(
        context.grid,
        timeout,
        retries,
        strict=False,
        must_announce=True,
        names=NodeNames() if context.data.is_local else None,
    )
    context.discovery.gather(0)
