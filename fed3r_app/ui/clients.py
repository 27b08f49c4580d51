"""The clients of a run and the state of each, by its ledger and its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

COUNTED, WAITING = "counted", "waiting"
MISSING = "missing"  # the run has ended without it
# In the order in which the page has them.
STATES = (COUNTED, WAITING, FAILED, REFUSED, MISSING, LOST, FORGOTTEN)


@dataclass(frozen=True)
class ClientRow:
    """A client in the table."""

    client: str
    state: str
    images: int | None = None
    replies: int = 0
    time: str = ""  # of its last reply, in UTC
    reason: str = ""


def client_rows(
    entries: Sequence[LedgerEntry], missing: Iterable[str] = ()
) -> list[ClientRow]:
    """Return the clients that are known by name, in the order of their first reply.

    ``missing`` are those that the summary names.
    """
    standing = standing_entries(entries)
    last: dict[str, LedgerEntry] = {}
    entries = [entry for entry in entries if entry.client]
    for entry in entries:
        if entry.outcome != REPEATED or entry.client not in last:
            last[entry.client] = entry
    replies = Counter(entry.client for entry in entries)
    rows = [
        ClientRow(
            client,
            COUNTED if client in standing else _state(entry.outcome),
            standing[client].num_samples if client in standing else None,
            replies[client],
            entry.time,
            entry.reason,
        )
        for client, entry in last.items()
    ]
    return [*rows, *(ClientRow(name, MISSING) for name in missing if name not in last)]


def _state(outcome: str) -> str:
    """Return the state that an outcome leaves a client in that is not counted."""
    return WAITING if outcome in (READMITTED, REPEATED) else outcome


def count_states(
    rows: Sequence[ClientRow], clients: int | None, is_over: bool
) -> Mapping[str, int]:
    """Return how many clients are in each state.

    ``clients`` is how many there are: those without a name have not replied yet.
    """
    counts = Counter(row.state for row in rows)
    forgotten = counts[FORGOTTEN]
    unnamed = (clients or 0) - (len(rows) - forgotten)
    counts[MISSING if is_over else WAITING] += max(unnamed, 0)
    return {state: counts[state] for state in STATES if counts[state]}
