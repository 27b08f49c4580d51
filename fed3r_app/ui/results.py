"""The folder of all runs as the page may see it: never written, and nothing outside.

A file is parsed again only after it has changed. A link, which may lead anywhere, is
not followed: neither to a run nor to a file of one.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TypeVar, cast

from fed3r_app.files import is_locked
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import Ledger, LedgerEntry
from fed3r_app.runs.listing import DAMAGED, ListedRun, describe_run

T = TypeVar("T")
Stamp = tuple[int, int, int] | None  # of a file: inode, size, time; None: not there
_MOST_PARSED = 16  # files; those of long runs take some megabytes each


class Results:
    """The runs in a folder.

    Parameters
    ----------
    folder : Path
        Must be there.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"RESULTS must be a folder of runs, got {folder}, which is no folder. "
                "Has a run been made here?"
            )
        if RunDirectory(folder).config_path.is_file():
            raise ValueError(
                f"RESULTS must be a folder of runs, got {folder}, which is a run "
                f"itself. Give the folder that holds it: {folder.parent}."
            )
        self.folder = folder.resolve()
        self._listed: dict[str, tuple[str, ListedRun]] = {}
        self._parsed: OrderedDict[Path, tuple[Stamp, object]] = OrderedDict()
        self._lock = Lock()

    def runs(self) -> list[ListedRun]:
        """Return all runs, the one that began last first."""
        with os.scandir(self.folder) as entries:
            names = [
                each.name for each in entries if each.is_dir(follow_symlinks=False)
            ]
        found = [self._describe(RunFiles(self, self.folder / name)) for name in names]
        for name in self._listed.keys() - set(names):  # deleted since
            self._listed.pop(name, None)
        runs = [run for run in found if run]
        return sorted(runs, key=lambda run: (run.began, run.name), reverse=True)

    def open(self, name: str) -> RunFiles:
        """Return the files of a run; whatever is not a run's name is refused."""
        path = self.folder / name
        # Also with "..", a link or an absolute path for a name.
        is_inside = "\0" not in name and path.resolve().parent == self.folder
        if not (is_inside and path.resolve() == path and path.is_dir()):
            raise FileNotFoundError(
                f"RUN must be the name of a run in {self.folder}, got {name!r}."
            )
        return RunFiles(self, path)

    def describe(self, run: RunFiles) -> ListedRun:
        """Return the entry of a run in a list."""
        listed = self._describe(run)
        if listed is None:
            raise FileNotFoundError(f"{run.directory.path} must hold a run, got none.")
        return listed

    def _describe(self, run: RunFiles) -> ListedRun | None:
        """Return the entry of a run in a list; None for a folder that holds none."""
        directory = run.directory
        try:
            version = run.version
        except ValueError as error:
            began = datetime.fromtimestamp(run.path.lstat().st_mtime, UTC)
            return ListedRun(directory, DAMAGED, began, str(error))
        if not any(map(stamp_of, (directory.config_path, directory.summary_path))):
            return None
        known = self._listed.get(directory.path.name)
        if known is None or known[0] != version:
            known = self._listed[directory.path.name] = version, describe_run(directory)
        return known[1]

    def parsed(self, path: Path, read: Callable[[], T]) -> T:
        """Return what is read of a file, as it was read before if it is unchanged."""
        stamp = stamp_of(path)
        with self._lock:
            known = self._parsed.get(path)
            if known is None or known[0] != stamp:
                known = stamp, read()
            self._parsed[path] = known
            self._parsed.move_to_end(path)
            if len(self._parsed) > _MOST_PARSED:
                self._parsed.popitem(last=False)
        return cast(T, known[1])


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, each parsed when it is wanted."""

    results: Results
    path: Path

    @property
    def directory(self) -> RunDirectory:
        """The directory of the run."""
        return RunDirectory(self.path)

    @property
    def version(self) -> str:
        """A word that changes when any file that is shown does, or work begins or ends.

        Raises where one of the files leads elsewhere.
        """
        run = self.directory
        shown = (
            *(run.config_path, run.summary_path, run.metrics_path, run.ledger_path),
            *(run.clients_path, run.confusion_path, run.model_path),
            *(run.provenance_path, run.lock_path),
        )
        state = [*map(stamp_of, shown[:-1]), is_locked(run.lock_path)]
        return blake2b(repr(state).encode(), digest_size=8).hexdigest()

    def config(self) -> dict[str, str | int | float | bool]:
        """Return the run config; empty where it is not there."""
        run = self.directory
        if stamp_of(run.config_path) is None:
            return {}
        return self.results.parsed(run.config_path, run.read_config)

    def summary(self) -> dict[str, object]:
        """Return the summary; empty where there is none yet."""
        run = self.directory
        if stamp_of(run.summary_path) is None:
            return {}
        return self.results.parsed(run.summary_path, run.read_summary)

    def metrics(self) -> list[dict[str, object]]:
        """Return the metrics of each round."""
        run = self.directory
        return self.results.parsed(run.metrics_path, run.read_metrics)

    def clients(self) -> list[str]:
        """Return who takes part, as far as that is known."""
        run = self.directory
        return self.results.parsed(run.clients_path, run.read_clients)

    def confusion(self) -> tuple[list[str], list[tuple[int, int, int]]]:
        """Return the classes, and the test images by class and predicted class."""
        run = self.directory
        if stamp_of(run.confusion_path) is None:
            return [], []
        return self.results.parsed(run.confusion_path, run.read_confusion)

    def ledger(self) -> list[LedgerEntry]:
        """Return the ledger, oldest entry first."""
        path = self.directory.ledger_path
        return self.results.parsed(path, Ledger(path).entries)


def stamp_of(path: Path) -> Stamp:
    """Return what changes with a file; raise where it is a link, or no file at all."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} must be a plain file, got a link or something else.")
    return status.st_ino, status.st_size, status.st_mtime_ns
