"""A journal that keeps what a strategy records."""

from flwr.app import ArrayRecord

from fed3r_app.core import Contribution
from fed3r_app.runs.ledger import LedgerEntry


class KeptJournal:
    """Keeps (client, outcome, whether a record came with it) of each reply."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, bool]] = []

    def record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None,
        contribution: Contribution | None = None,
    ) -> None:
        self.entries.append((entry.client, entry.outcome, record is not None))
