"""Which images a node's folders had: what is cached of those that are gone goes, too.

Features reveal images, and would outlive them in the cache. So for each folder of a
node's own images the cache notes which there were when features were last asked for;
next time, and with `fed3r cache prune`, the rows of the others are removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fed3r_app.data.images import DataSet, OwnImages
from fed3r_app.data.local_folder import load_local
from fed3r_app.files import parse_object, write_atomically
from fed3r_app.files.row_cache import Removed, remove_rows, row_files

_FOLDERS = "folders"  # of the cache: a file for each data-path


@dataclass(frozen=True)
class Seen:
    """The images that a data-path had: the keys of their rows in the cache."""

    data_path: str
    keys: frozenset[str]

    @classmethod
    def of(cls, dataset: DataSet, data_path: str) -> Seen:
        """Return which images a data set has now."""
        parts = [p for p in (dataset.train, dataset.test) if isinstance(p, OwnImages)]
        where = str(Path(data_path).expanduser().resolve())
        return cls(where, frozenset(key for part in parts for key in part.keys))

    def save(self, cache: Path) -> None:
        """Note them in a cache."""
        folder = cache / _FOLDERS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = {"data-path": self.data_path, "keys": sorted(self.keys)}
        path = _path(cache, self.data_path)
        write_atomically(path, json.dumps(values).encode(), mode=0o600)


def remove_gone(dataset: DataSet, data_path: str, cache: Path) -> int:
    """Remove what is cached of images that a folder had and has no more.

    Returns how many images those are. A cache that can't be written to stays as it is.
    """
    now = Seen.of(dataset, data_path)
    before = _read(_path(cache, now.data_path))
    if before == now:
        return 0
    gone = before.keys - now.keys if before else frozenset()
    try:
        remove_rows(cache, gone)
        now.save(cache)
    except OSError:  # who writes features there says what is wrong with it
        return 0
    return len(gone)


class Pruned(NamedTuple):
    """What `prune` removed, and the folders that were not there to be looked at."""

    removed: Removed
    absent: tuple[str, ...]


def prune(cache: Path, *, absent_too: bool) -> Pruned:
    """Remove what is cached of images that are in none of the folders they came from.

    A folder that is not there may be a drive that is not mounted: what is cached of its
    images stays, unless ``absent_too``.
    """
    wanted: set[str] = set()
    absent = []
    for before in _all_seen(cache):
        try:
            now = Seen.of(load_local(before.data_path), before.data_path)
        except (OSError, ValueError):
            absent.append(before.data_path)
            if absent_too:
                _path(cache, before.data_path).unlink(missing_ok=True)
            else:
                wanted |= before.keys
            continue
        now.save(cache)
        wanted |= now.keys
    gone = {path.name for path in row_files(cache)} - wanted
    return Pruned(remove_rows(cache, gone), tuple(absent))


def _path(cache: Path, data_path: str) -> Path:
    name = hashlib.sha256(data_path.encode(errors="surrogateescape")).hexdigest()
    return cache / _FOLDERS / f"{name[:32]}.json"


def _all_seen(cache: Path) -> Iterator[Seen]:
    found = (_read(path) for path in sorted((cache / _FOLDERS).glob("*.json")))
    return (seen for seen in found if seen)


def _read(path: Path) -> Seen | None:
    """Return what was noted in a file; None where it is absent or damaged."""
    try:
        values = parse_object(path.read_text("utf-8"), str(path))
    except (OSError, ValueError):
        return None
    where, keys = values.get("data-path"), values.get("keys")
    if not isinstance(where, str) or not isinstance(keys, list):
        return None
    return Seen(where, frozenset(filter(_is_key, keys)))


def _is_key(key: object) -> bool:
    return isinstance(key, str) and bool(re.fullmatch("[0-9a-f]+", key))
