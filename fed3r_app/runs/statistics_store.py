"""Where a run saves its statistics, and how they are recovered after a crash.

A run saves a snapshot, a ledger, a sketch of each contribution, and the contributions
it keeps. The snapshot is the truth. The ledger is written before it, so that nothing is
ever in the statistics that is not in the ledger; the other way round, `load` sets it
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

from flwr.app import ArrayRecord
from flwr.common.logger import log

from fed3r_app.core import Contribution, RidgeStatistics, RunningSum
from fed3r_app.files import replace_by_link
from fed3r_app.files.tensors import DamagedFile
from fed3r_app.runs.contributions import (
    drop_contributions_except,
    load_contribution,
    save_contribution,
)
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import (
    Ledger,
    LedgerEntry,
    forgotten_clients,
    standing_entries,
)
from fed3r_app.runs.sketches import SketchBook
from fed3r_app.runs.snapshots import Snapshot, load_snapshot, save_snapshot


class StatisticsStore:
    """The statistics of one run on disk, with its ledger and kept contributions.

    Attributes
    ----------
    expected : set of str
        Clients that were ever counted, even if all snapshots are damaged: the run must
        report them as missing if they are not in the snapshot.
    forgotten : set of str
        Clients that are not to be asked.
    """

    def __init__(self, directory: RunDirectory, keep: bool) -> None:
        self._directory = directory
        self._keep = keep
        self.ledger = Ledger(directory.ledger_path)
        self.sketches = SketchBook(directory.sketches_path)
        self.expected: set[str] = set()
        self.forgotten: set[str] = set()

    def load(self) -> Snapshot | None:
        """Return the last snapshot that is whole, and clear up after a crash.

        Clients that were accepted after it was written are not in it: they are to be
        asked again, and the ledger records that. None where there is no snapshot.
        """
        entries = self.ledger.entries()
        snapshot = self._load_whole()
        contributions = snapshot.contributions if snapshot else {}
        self.expected = {*standing_entries(entries), *contributions}
        self.forgotten = (
            set(snapshot.forgotten) if snapshot else forgotten_clients(entries)
        )
        self.expected -= self.forgotten
        if snapshot and _lost_a_part(snapshot, entries):
            self._drop_what_is_not_in(snapshot)
        self.ledger.reconcile(contributions, self.forgotten)
        drop_contributions_except(self._directory.contributions_path, contributions)
        self.sketches.keep_only(contributions)
        return snapshot

    def record(
        self,
        entry: LedgerEntry,
        record: ArrayRecord | None,
        contribution: Contribution | None,
        class_names: Sequence[str],
    ) -> None:
        """Write down what became of a reply, before it is counted.

        An accepted one comes with its record and the contribution in it, unless nothing
        of a single client may be kept.
        """
        if record is not None and contribution is not None:
            self.keep(entry, record, contribution, class_names)
        self.ledger.append(entry)

    def keep(
        self,
        entry: LedgerEntry,
        record: ArrayRecord,
        contribution: Contribution,
        class_names: Sequence[str],
    ) -> None:
        """Keep the sketch of a contribution and, where that is wanted, its record."""
        client, digest = entry.client, entry.digest
        self.sketches.add(client, digest, contribution, class_names)
        if self._keep:
            folder = self._directory.contributions_path
            save_contribution(folder, client, digest, record, class_names)

    def kept(self, snapshot: Snapshot, client: str) -> Contribution | None:
        """Return the contribution of a client in the statistics, where it was kept."""
        return load_contribution(
            self._directory.contributions_path,
            client,
            snapshot.contributions[client],
            snapshot.class_names,
        )

    def kept_total(self, snapshot: Snapshot, except_for: str) -> RidgeStatistics | None:
        """Return the sum of what was kept of all clients but one; None unless all was.

        A client that is subtracted instead leaves rounding errors.
        """
        stats = snapshot.statistics
        total = RunningSum(RidgeStatistics.zeros(stats.d, stats.num_classes))
        for client in snapshot.contributions:
            if client == except_for:
                continue
            try:
                contribution = self.kept(snapshot, client)
            except DamagedFile as error:
                log(WARNING, "%s Client %s is subtracted instead.", error, except_for)
                return None
            if contribution is None:
                return None
            total.add(contribution)
        return total.value()

    def counted_samples(self) -> dict[str, int]:
        """Return how many samples each counted client has in the statistics."""
        entries = standing_entries(self.ledger.entries()).values()
        return {each.client: each.num_samples or 0 for each in entries}

    def image_counts(self) -> dict[str, int]:
        """Return what the counted clients said of their images, added up."""
        entries = standing_entries(self.ledger.entries()).values()
        return {
            "unreadable_images": sum(entry.unreadable or 0 for entry in entries),
            "held_out_classes": sum(entry.held_out_classes or 0 for entry in entries),
        }

    def save(self, snapshot: Snapshot) -> None:
        """Save the statistics; those saved before stay at hand."""
        self.ledger.sync()
        self.sketches.save()
        path = self._directory.statistics_path
        try:
            if path.exists():
                earlier = self._directory.earlier_statistics_path
                replace_by_link(earlier, lambda link: link.hardlink_to(path))
            save_snapshot(path, snapshot)
        except OSError as error:
            raise OSError(
                f"The statistics must be saved in {path}, got: "
                f"{error.strerror or error}. What was saved before is whole: make "
                "room, and resume with resume=true."
            ) from error

    def save_without(self, snapshot: Snapshot, entry: LedgerEntry) -> None:
        """Save statistics that lost a part, and leave no trace of that part."""
        self.sketches.save()
        save_snapshot(self._directory.statistics_path, snapshot)
        # Until the ledger says so, `load` finds that the rest is still to be done.
        self._drop_what_is_not_in(snapshot)
        self.ledger.append(entry)
        self.ledger.sync()

    def _drop_what_is_not_in(self, snapshot: Snapshot) -> None:
        """Remove all that is left of a part: the snapshot before this one goes last."""
        folder = self._directory.contributions_path
        drop_contributions_except(folder, snapshot.contributions)
        self.sketches.keep_only(snapshot.contributions)
        self._directory.earlier_statistics_path.unlink(missing_ok=True)

    def _load_whole(self) -> Snapshot | None:
        directory = self._directory
        for path in (directory.statistics_path, directory.earlier_statistics_path):
            try:
                if path.exists():
                    return load_snapshot(path)
            except DamagedFile as error:
                log(WARNING, "%s What is not in an earlier one is asked again.", error)
        return None


def _lost_a_part(snapshot: Snapshot, entries: Sequence[LedgerEntry]) -> bool:
    """Return whether statistics lost a part that is not gone from the ledger yet."""
    digests = {c: entry.digest for c, entry in standing_entries(entries).items()}
    replaced = digests.keys() & snapshot.contributions.keys()
    return bool(digests.keys() & set(snapshot.forgotten)) or any(
        digests[client] != snapshot.contributions[client] for client in replaced
    )
