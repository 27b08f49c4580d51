"""Features on disk, one small file an image: for folders whose images come and go.

`FeatureCache` keeps all rows of a data set under one key, so that a single new image
makes another data set of it. Here every image has a key of its own, and only new or
changed ones are extracted. Files appear whole, and hold a checksum: processes
share them without locks.
"""

import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.feature_cache import CHECKSUM_BYTES, checksum_of

_LOG = logging.getLogger(__name__)


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
