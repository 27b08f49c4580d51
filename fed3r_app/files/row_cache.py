"""Rows of numbers on disk, such as the features of images, shared without locks.

A record is d values (float32 unless another type is given) and the CRC-32 of their
bytes. A row counts only if its checksum fits, so a torn write, a truncated file and two
writers of the same row can do no worse than make a row absent.

`SparseFileCache` keeps the records of a data set at their rows' places in one sparse
file. Plain reads and writes, not a memory map: a full disk is then an error, not the
end of the process. Where rows come from files, a stamp of each file goes into its
checksum: a file that changes makes its own row absent, and no other. A single new image
moves the rows, so `FilePerRowCache` keeps one small file an image, for folders whose
images come and go.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fed3r_app.files import write_atomically

_LOG = logging.getLogger(__name__)
CHECKSUM_BYTES = 4
Rows = NDArray[np.int64]


class RowCache(ABC):
    """Rows of d = dim values of a dtype each.

    The folder belongs to one key, and is made when the first rows are written.
    ``stamps`` are what the rows were made from, by row, where that may change.
    """

    def __init__(
        self,
        folder: Path,
        dim: int,
        dtype: str = "<f4",
        stamps: Sequence[bytes] | None = None,
    ) -> None:
        self._folder = folder
        self._dim = dim
        self._dtype = np.dtype(dtype)
        self._stamps = stamps
        self._record = self._dtype.itemsize * dim + CHECKSUM_BYTES
        self._writable = True

    def read(self, rows: Rows) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the values (m, d) of some rows (m,), and which were there (m,).

        Those of a row that is absent, or not whole, are zero.
        """
        features = np.zeros((len(rows), self._dim), dtype=self._dtype)
        found = np.zeros(len(rows), dtype=bool)
        damaged = 0
        try:
            records = zip(rows, self._read_records(rows), strict=True)
            for place, (row, record) in enumerate(records):
                data, checksum = record[:-CHECKSUM_BYTES], record[-CHECKSUM_BYTES:]
                is_whole = len(record) == self._record
                # A hole of a sparse file reads as zeros, the end of one as nothing.
                if not record or (is_whole and not any(checksum)):
                    continue
                if is_whole and checksum == self._checksum(int(row), data):
                    features[place] = np.frombuffer(data, dtype=self._dtype)
                    found[place] = True
                else:
                    damaged += 1
        except FileNotFoundError:
            pass
        except OSError as error:
            _LOG.warning("The cache %s is not read: %s", self._folder, error)
        if damaged:
            which = "changed or damaged" if self._stamps else "damaged"
            _LOG.warning(
                "%d %s rows of %s are made again.", damaged, which, self._folder
            )
        return features, found

    def write(self, rows: Rows, features: NDArray[Any]) -> None:
        """Keep the features (m, d) of some rows (m,).

        Where that fails, the reason is logged once and nothing more is written: a run
        continues without its cache.
        """
        if not self._writable:
            return
        records = (values.astype(self._dtype).tobytes() for values in features)
        checked = (
            (row, data + self._checksum(row, data))
            for row, data in zip(map(int, rows), records, strict=True)
        )
        try:
            self._write_records(checked)
        except OSError as error:
            self._writable = False
            _LOG.warning(
                "Rows are not kept in %s (%s), so the next run makes them again. Is "
                "the disk full, or the folder read-only?",
                self._folder,
                error,
            )

    def _checksum(self, row: int, data: bytes) -> bytes:
        return checksum_of(data + (self._stamps[row] if self._stamps else b""))

    @abstractmethod
    def _read_records(self, rows: Rows) -> Iterator[bytes]:
        """Yield the record of each row; b"" where there is none."""

    @abstractmethod
    def _write_records(self, records: Iterable[tuple[int, bytes]]) -> None:
        """Write records to their rows."""


class SparseFileCache(RowCache):
    """All rows of one data set in one file.

    ``about`` says, for people, what the folder holds; it is written beside the file.
    """

    def __init__(
        self,
        folder: Path,
        dim: int,
        about: Mapping[str, object],
        dtype: str = "<f4",
        stamps: Sequence[bytes] | None = None,
    ) -> None:
        super().__init__(folder, dim, dtype, stamps)
        self._file = folder / "features.bin"
        self._about = about

    def _read_records(self, rows: Rows) -> Iterator[bytes]:
        with self._file.open("rb", buffering=0) as file:
            for row in rows:
                file.seek(int(row) * self._record)
                yield file.read(self._record)

    def _write_records(self, records: Iterable[tuple[int, bytes]]) -> None:
        if not self._file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            about = json.dumps(self._about, indent=2).encode()
            write_atomically(self._folder / "about.json", about)
            self._file.touch()
        with self._file.open("r+b") as file:
            for row, record in records:
                file.seek(row * self._record)
                file.write(record)


class FilePerRowCache(RowCache):
    """Each row in a file of its own, named by its key: hexadecimal digits."""

    def __init__(self, folder: Path, dim: int, keys: Sequence[str]) -> None:
        super().__init__(folder, dim)
        self._keys = keys

    def _path(self, row: int) -> Path:
        key = self._keys[row]
        return self._folder / key[:2] / key

    def _read_records(self, rows: Rows) -> Iterator[bytes]:
        for row in rows:
            try:
                yield self._path(int(row)).read_bytes()
            except OSError:
                yield b""

    def _write_records(self, records: Iterable[tuple[int, bytes]]) -> None:
        for row, record in records:
            path = self._path(row)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, record, sync=False)


class Removed(NamedTuple):
    """How many rows were removed, and how many bytes they had."""

    rows: int
    size: int


def row_files(cache: Path) -> Iterator[Path]:
    """Yield the files of every `FilePerRowCache` in a folder."""
    return cache.glob("*-*/[0-9a-f][0-9a-f]/*")


def remove_rows(cache: Path, keys: Collection[str]) -> Removed:
    """Remove the rows with some keys from every `FilePerRowCache` in a folder."""
    removed = Removed(0, 0)
    folders = [path for path in cache.glob("*-*") if path.is_dir()] if keys else []
    for folder, key in product(folders, keys):
        path = folder / key[:2] / key
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
            removed = Removed(removed.rows + 1, removed.size + size)
    return removed


def checksum_of(data: bytes) -> bytes:
    """Return the CRC-32 of a row, never zero: zero means that there is no row."""
    return (zlib.crc32(data) or 1).to_bytes(CHECKSUM_BYTES, "little")


def cache_dir() -> Path:
    """Return the folder of cached features: $FED3R_CACHE_DIR, else the user's cache.

    Features reveal images: a folder that is not there yet is made for its owner
    alone. One that is there stays as it is.
    """
    configured = os.environ.get("FED3R_CACHE_DIR")
    folder = Path(configured) if configured else Path.home() / ".cache" / "fed3r"
    with suppress(OSError):  # writing there says what is wrong with it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def folder_sizes(cache: Path) -> Iterable[tuple[str, int, int]]:
    """Yield the name, the number of files and the bytes of each entry of a cache."""
    for entry in sorted(cache.iterdir()) if cache.is_dir() else []:
        files = [entry] if entry.is_file() else [*entry.rglob("*")]
        # Blocks, not lengths: a sparse file is mostly holes.
        sizes = [f.stat().st_blocks * 512 for f in files if f.is_file()]
        yield entry.name, len(sizes), sum(sizes)
