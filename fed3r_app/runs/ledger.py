"""The audit trail of a run: who sent what when, and what became of it.

A file of JSON lines that is only appended to. It holds names, digests, numbers of
images and reasons: no image, no feature, no sum. What is in the statistics is for the
snapshot to say; where the two differ, a line is added here, never anything there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fed3r_app.files import append_line, read_lines
from fed3r_app.runs.formats import header, split_header

ACCEPTED = "accepted"  # its statistics went into the statistics
REPLACED = "replaced"  # they went in, and its earlier ones went out
REPEATED = "repeated"  # they are in the statistics already: ignored
REFUSED = "refused"  # they may not go in
FAILED = "failed"  # it sent none, but an error
FORGOTTEN = "forgotten"  # they were taken out of the statistics, for good
READMITTED = "readmitted"  # who was forgotten may be asked again
LOST = "lost"  # accepted, but the run was stopped before the statistics were saved
FOUND = "found"  # in the saved statistics, though nothing here says so
RESUMED = "resumed"  # by another version, as the reason says: a line of no client
_IN, _OUT = (ACCEPTED, REPLACED, FOUND), (FORGOTTEN, LOST)
_LONGEST_REASON = 500


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger."""

    client: str
    outcome: str  # one of the words above
    digest: str = ""  # of what went into its statistics; "" where none came
    num_samples: int | None = None
    reason: str = ""  # why it was not accepted
    unreadable: int | None = None  # images that were left out, if any
    held_out_classes: int | None = None  # classes without training images, if any
    time: str = field(  # in UTC
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )


class Ledger:
    """The ledger in a file, which the first line makes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, entry: LedgerEntry) -> None:
        """Add a line: it survives the process; `sync` makes it survive the machine."""
        values = asdict(entry) | {"reason": entry.reason[:_LONGEST_REASON]}
        known = {key: value for key, value in values.items() if value not in ("", None)}
        known["client"] = entry.client  # also of a line that is of none
        try:
            append_line(self._path, known, header("ledger"))
        except OSError as error:
            raise OSError(
                f"The ledger {self._path} must be writable, got: {error.strerror}. "
                "Nothing is counted that is not in it."
            ) from error

    def sync(self) -> None:
        """Put on the disk what was added."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def entries(self) -> list[LedgerEntry]:
        """Return all lines, oldest first."""
        try:
            _, lines = split_header(self._path, read_lines(self._path))
            return [LedgerEntry(**line) for line in lines]  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(
                f"{self._path} must be the ledger of a run, got: {reason}. If the file "
                "is damaged, move it away: the statistics say who is counted."
            ) from None

    def reconcile(self, contributions: Mapping[str, str], forgotten: set[str]) -> None:
        """Add the lines that a crash kept from being written.

        The saved statistics hold ``contributions`` (client: digest); ``forgotten`` are
        the clients that were taken out of them.
        """
        entries = self.entries()
        standing = standing_entries(entries)
        for client, entry in standing.items():
            if client not in contributions:
                outcome = FORGOTTEN if client in forgotten else LOST
                self.append(LedgerEntry(client, outcome, entry.digest))
        for client in sorted(forgotten_clients(entries) - forgotten):
            self.append(LedgerEntry(client, READMITTED))
        for client, digest in contributions.items():
            if client not in standing or standing[client].digest != digest:
                self.append(LedgerEntry(client, FOUND, digest))
        self.sync()


def standing_entries(entries: Iterable[LedgerEntry]) -> dict[str, LedgerEntry]:
    """Return the entry of each client that is in the statistics, after all of them."""
    standing: dict[str, LedgerEntry] = {}
    for entry in entries:
        if entry.outcome in _IN:
            standing[entry.client] = entry
        elif entry.outcome in _OUT:
            standing.pop(entry.client, None)
    return standing


def forgotten_clients(entries: Iterable[LedgerEntry]) -> set[str]:
    """Return who was forgotten and not admitted again."""
    forgotten: set[str] = set()
    for entry in entries:
        if entry.outcome == FORGOTTEN:
            forgotten.add(entry.client)
        elif entry.outcome in (*_IN, READMITTED):
            forgotten.discard(entry.client)
    return forgotten
