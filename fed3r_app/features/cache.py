"""Features on disk, one record an image, shared by all processes without locks.

A record is d values (float32 unless told otherwise) and the CRC-32 of their bytes, at
its row's place in one sparse file. A row counts only if its checksum fits, so a torn
write, a truncated file and two writers of the same row can do no worse than make a row
absent. Plain reads and writes, not a memory map: a full disk is then an error, not the
end of the process.

Features on disk, one small file an image: for folders whose images come and go.

`FeatureCache` keeps all rows of a data set under one key, so that a single new image
makes another data set of it. Here every image has a key of its own, and only new or
changed ones are extracted. Files appear whole, and hold a checksum: processes
share them without locks.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)
CHECKSUM_BYTES = 4


class FeatureCache:
    """The features of one data set under one backbone.

    Parameters
    ----------
    folder : Path
        Made when the first rows are written. It belongs to one key.
    dim : int
        Number of features d.
    about : mapping
        What the folder holds, for people; written beside the features.
    dtype : str
        Of the values.
    """

    def __init__(
        self,
        folder: Path,
        dim: int,
        about: Mapping[str, object],
        dtype: str = "<f4",
    ) -> None:
        self._folder = folder
        self._file = folder / "features.bin"
        self._about = about
        self._dim = dim
        self._dtype = np.dtype(dtype)
        self._record = self._dtype.itemsize * dim + CHECKSUM_BYTES
        self._writable = True

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the features of some rows, and which of them were there.

        Parameters
        ----------
        rows : NDArray of shape (m,), int64
            Rows of the data set, in any order.

        Returns
        -------
        NDArray of shape (m, d)
            Zero where a row is absent.
        NDArray of shape (m,), bool
            Whether the row was there, whole.
        """
        features = np.zeros((len(rows), self._dim), dtype=self._dtype)
        found = np.zeros(len(rows), dtype=bool)
        damaged = 0
        try:
            with self._file.open("rb", buffering=0) as file:
                for i, row in enumerate(rows):
                    values, whole = self._read_row(file, int(row))
                    if values is not None:
                        features[i], found[i] = values, True
                    damaged += not whole
        except FileNotFoundError:
            pass
        except OSError as error:
            _LOG.warning("The feature cache %s is not read: %s", self._file, error)
        if damaged:
            _LOG.warning(
                "%d damaged rows of %s are extracted again.", damaged, self._file
            )
        return features, found

    def write(self, rows: NDArray[np.int64], features: NDArray[Any]) -> None:
        """Keep the features of some rows.

        Where that fails, the reason is logged once and nothing more is written: a run
        goes on without its cache.

        Parameters
        ----------
        rows : NDArray of shape (m,), int64
        features : NDArray of shape (m, d)
        """
        if not self._writable:
            return
        try:
            self._prepare()
            with self._file.open("r+b") as file:
                for row, values in zip(rows, features, strict=True):
                    data = values.astype(self._dtype).tobytes()
                    file.seek(int(row) * self._record)
                    file.write(data + checksum_of(data))
        except OSError as error:
            self._writable = False
            _LOG.warning(
                "Features are not kept in %s (%s), so the next run extracts them "
                "again. Is the disk full, or the folder read-only?",
                self._folder,
                error,
            )

    def _read_row(self, file: BinaryIO, row: int) -> tuple[NDArray[Any] | None, bool]:
        """Return a row's values or None, and whether it is free of damage."""
        file.seek(row * self._record)
        record = file.read(self._record)
        data, checksum = record[:-CHECKSUM_BYTES], record[-CHECKSUM_BYTES:]
        # A hole of the sparse file reads as zeros, the end of the file as nothing.
        if not record or (len(record) == self._record and not any(checksum)):
            return None, True
        if len(record) < self._record or checksum != checksum_of(data):
            return None, False
        return np.frombuffer(data, dtype=self._dtype), True

    def _prepare(self) -> None:
        """Make the folder, the file and its description unless they are there."""
        if self._file.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self._folder, suffix=".tmp", delete=False
        ) as file:
            json.dump(self._about, file, indent=2)
        os.replace(file.name, self._folder / "about.json")
        self._file.touch()


def checksum_of(data: bytes) -> bytes:
    """Return the CRC-32 of a row, never zero: zero means that there is no row."""
    return (zlib.crc32(data) or 1).to_bytes(CHECKSUM_BYTES, "little")


class FeatureFiles:
    """The features of some images under one backbone.

    Parameters
    ----------
    folder : Path
        Made when the first features are written. It belongs to one backbone.
    dim : int
        Number of features d.
    keys : sequence of str
        Names the content of each row; hexadecimal digits.
    """

    def __init__(self, folder: Path, dim: int, keys: Sequence[str]) -> None:
        self._folder = folder
        self._dim = dim
        self._keys = keys
        self._writable = True

    def read(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the features (m, d) of some rows (m,), and which were there (m,)."""
        features = np.zeros((len(rows), self._dim), dtype="<f4")
        found = np.zeros(len(rows), dtype=bool)
        for place, row in enumerate(rows):
            values = self._read_row(int(row))
            if values is not None:
                features[place], found[place] = values, True
        return features, found

    def write(self, rows: NDArray[np.int64], features: NDArray[np.float32]) -> None:
        """Keep the features (m, d) of some rows (m,).

        Where that fails, the reason is logged once and nothing more is written.
        """
        if not self._writable:
            return
        try:
            for row, values in zip(rows, features, strict=True):
                data = values.astype("<f4").tobytes()
                _write_whole(self._path(int(row)), data + checksum_of(data))
        except OSError as error:
            self._writable = False
            _LOG.warning(
                "Features are not kept in %s (%s), so the next run extracts them "
                "again. Is the disk full, or the folder read-only?",
                self._folder,
                error,
            )

    def _path(self, row: int) -> Path:
        key = self._keys[row]
        return self._folder / key[:2] / key

    def _read_row(self, row: int) -> NDArray[np.float32] | None:
        """Return a row's values, or None where they are absent or damaged."""
        try:
            record = self._path(row).read_bytes()
        except OSError:
            return None
        data, checksum = record[:-CHECKSUM_BYTES], record[-CHECKSUM_BYTES:]
        if len(data) != 4 * self._dim or checksum != checksum_of(data):
            return None
        return np.frombuffer(data, dtype="<f4")


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def cache_dir() -> Path:
    """Return the folder of cached features: $FED3R_CACHE_DIR, else the user's cache.

    Features tell of the images: a folder that is not there yet is made for its owner
    alone. One that is there stays as it is.
    """
    configured = os.environ.get("FED3R_CACHE_DIR")
    folder = Path(configured) if configured else Path.home() / ".cache" / "fed3r"
    with suppress(OSError):  # whoever writes there says what is wrong with it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
