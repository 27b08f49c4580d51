"""What a strategy tells of each reply, and to whom."""

from __future__ import annotations

from typing import Protocol

from flwr.app import ArrayRecord

from fed3r_app.core import Contribution
from fed3r_app.runs.ledger import LedgerEntry


class Journal(Protocol):
    """Where a run writes down what became of each reply."""

    def record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None,
        contribution: Contribution | None = None,
    ) -> None:
        """Write an entry, with the record that is about to be added to the sum.

        ``contribution`` is what the record holds.
        What this raises ends the run, and the sum does not change.
        """
