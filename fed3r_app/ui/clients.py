"""The clients of a run and the state of each, by the files of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fed3r_app.runs.ledger import (
    FAILED,
    FORGOTTEN,
    LOST,
    READMITTED,
    REFUSED,
    REPEATED,
    LedgerEntry,
    standing_entries,
)
from fed3r_app.runs.listing import RUNNING
from fed3r_app.ui.results import RunFiles

COUNTED = "counted"
WAITING = "waiting"  # for its reply
MISSING = "missing"  # it had not replied when the run ended
TRAINING = "training"  # there are no statistics to count, only rounds of training
# In the order in which the page has them.
STATES = (COUNTED, WAITING, TRAINING, FAILED, REFUSED, MISSING, LOST, FORGOTTEN)


@dataclass(frozen=True)
class ClientRow:
    """A client in the table."""

    client: str
    state: str
    images: int | None = None
    replies: int = 0
    time: str = ""  # of its last reply, in UTC
    reason: str = ""


def client_rows(run: RunFiles, state: str) -> list[ClientRow]:
    """Return the clients of a run that is in some state.

    Those that have replied come first, in the order of their first replies.
    """
    entries = [entry for entry in run.ledger() if entry.client]
    standing, replies = standing_entries(entries), Counter(e.client for e in entries)
    last: dict[str, LedgerEntry] = {}
    for entry in entries:
        if entry.outcome != REPEATED or entry.client not in last:
            last[entry.client] = entry
    unheard = WAITING if state == RUNNING else MISSING
    rows = [
        ClientRow(
            client,
            _state(entry.outcome, client in standing, unheard),
            standing[client].num_samples if client in standing else None,
            replies[client],
            entry.time,
            entry.reason,
        )
        for client, entry in last.items()
    ]
    if run.config().get("method") == "none":
        unheard = TRAINING
    named = dict.fromkeys([*run.clients(), *_missing(run)])
    return [*rows, *(ClientRow(name, unheard) for name in named if name not in last)]


def count_states(rows: Sequence[ClientRow]) -> dict[str, int]:
    """Return how many clients are in each state; a state without any has no entry."""
    counts = Counter(row.state for row in rows)
    return {state: counts[state] for state in STATES if counts[state]}


def _state(outcome: str, stands: bool, unheard: str) -> str:
    """Return the state of a client after its last reply."""
    if stands:
        return COUNTED
    return unheard if outcome in (READMITTED, REPEATED) else outcome


def _missing(run: RunFiles) -> list[str]:
    """Return the clients that the summary says are missing."""
    missing = run.summary().get("missing_clients")
    return missing if isinstance(missing, list) else []
