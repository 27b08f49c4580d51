"""What a run writes down while it collects statistics: the ledger, and snapshots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING

from flwr.app import ArrayRecord
from flwr.common.logger import log

from fed3r_app.core import Contribution
from fed3r_app.runs.ledger import FAILED, LedgerEntry
from fed3r_app.runs.snapshots import Setting, Snapshot
from fed3r_app.server.context import RunContext
from fed3r_app.server.cost_meter import StatisticsCosts
from strategies import Accumulator

# Saving may take this share of the time, and does not happen more often than that.
_SNAPSHOT_SHARE, _SNAPSHOT_SECONDS = 0.05, 10.0


@dataclass(eq=False)
class RunJournal:
    """Writes down every reply, and saves the statistics now and then.

    Parameters
    ----------
    accumulator : Accumulator
        The statistics of the run.
    settings : mapping
        What they depend on: a resumed run must have the same.
    costs : StatisticsCosts
        Brought up to date before a snapshot is saved.
    """

    context: RunContext
    accumulator: Accumulator
    settings: Mapping[str, Setting]
    costs: StatisticsCosts

    def __post_init__(self) -> None:
        self._num_saved = len(self.accumulator.contributions)
        self._last_saved, self._save_seconds = time.monotonic(), 0.0

    @property
    def is_saved(self) -> bool:
        """Whether all that was counted is in a file."""
        return 0 < self._num_saved == len(self.accumulator.contributions)

    def record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None,
        contribution: Contribution | None = None,
    ) -> None:
        """Write down what became of a reply, before it is counted."""
        self.save_if_due()  # a round may be all clients, and take hours
        if self.accumulator.noise:  # nothing that depends on single images is kept
            # The reason of a refusal may quote a sum; an error is a client's own words.
            reason = entry.reason if entry.outcome == FAILED else ""
            entry = LedgerEntry(entry.client, entry.outcome, reason=reason)
            record = contribution = None
        names = self.context.class_names
        self.context.state.record(entry, record, contribution, names)

    def save_if_due(self, *, at_once: bool = False) -> None:
        """Save the statistics if they have changed and enough time has passed."""
        pause = max(_SNAPSHOT_SECONDS, self._save_seconds / _SNAPSHOT_SHARE)
        changed = len(self.accumulator.contributions) > self._num_saved
        due = at_once or time.monotonic() - self._last_saved > pause
        if changed and due and self.accumulator.is_releasable:
            try:
                self.save()
            except OSError as error:  # perhaps there is room at the end
                log(WARNING, "The statistics could not be saved: %s", error)
                self._last_saved = time.monotonic()

    def save(self) -> None:
        """Save the statistics so far, with who is in them."""
        began = time.monotonic()
        self.costs.count()
        noise, context = self.accumulator.noise, self.context
        snapshot = Snapshot(
            self.accumulator.release(),
            {
                client: "" if noise else digest
                for client, digest in sorted(self.accumulator.contributions.items())
            },
            {**self.settings, **({"dp-sigma": noise.sigma} if noise else {})},
            context.recorder.progress(),
            context.class_names,
            tuple(sorted(context.state.forgotten)),
        )
        context.state.save(snapshot)
        self._num_saved = len(snapshot.contributions)
        self._last_saved = time.monotonic()
        self._save_seconds = self._last_saved - began
