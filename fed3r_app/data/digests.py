"""Digests of the content of images, each file read once: they are kept on disk.

They name the images of a contribution, and say which images are held out. No torch: a
node that says hello needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.images import DIGEST_BYTES, FileImages, ImageSet, OwnImages
from fed3r_app.data.reading import UnreadableImage
from fed3r_app.files import write_atomically
from fed3r_app.files.row_cache import CHECKSUM_BYTES, SparseFileCache, checksum_of

_LOG = logging.getLogger(__name__)


def image_digests(
    images: ImageSet, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return digests of the content of images; b"" for files that can't be opened."""
    if isinstance(images, OwnImages):
        return _digests_by_image(images, rows, cache_dir)
    if isinstance(images, FileImages):
        return _digests_by_row(images, rows, cache_dir)
    return [images.digest(int(row)) for row in rows]


def _progress() -> Callable[[int, int], None]:
    # Imported here: it logs with Flower, which `fed3r predict` does without.
    from fed3r_app.console.progress import Progress

    return Progress("images looked at")


def _digests_by_row(
    images: FileImages, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return digests, kept for a data set that many clients share and that stays."""
    about = {"digests of": "image files", "location": images.location}
    folder = cache_dir / f"digests-{images.location}"
    cache = SparseFileCache(folder, DIGEST_BYTES, about, "u1", images.stamps)
    digests, found = cache.read(rows)
    progress, missing = _progress(), np.flatnonzero(~found)
    absent = set()
    for done, i in enumerate(missing, 1):
        content = _digest(images, int(rows[i]))
        if content:
            digests[i] = np.frombuffer(content, dtype=np.uint8)
        else:
            absent.add(i)
        progress(done, len(missing))
    new = [i for i in missing if i not in absent]
    cache.write(rows[new], digests[new])
    return [b"" if i in absent else bytes(d) for i, d in enumerate(digests)]


def _digests_by_image(
    images: OwnImages, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return digests, kept for a folder where images come and go."""
    path = cache_dir / f"digests-{images.folder_key}.bin"
    known = _read_digests(path)
    keys = [images.keys[row] for row in rows]
    progress = _progress()
    new: dict[str, bytes] = {}
    for done, (key, row) in enumerate(zip(keys, rows, strict=True), 1):
        if key not in known:
            new[key] = _digest(images, int(row))
        progress(done, len(keys))
    digests = {**known, **new}
    if new or known.keys() - set(images.keys):
        # Those of images that are gone are not kept.
        there = {key: digests[key] for key in images.keys if digests.get(key)}
        _write_digests(path, there)
    return [digests[key] for key in keys]


def _digest(images: FileImages, row: int) -> bytes:
    try:
        return images.digest(row)
    except UnreadableImage:
        return b""


def _read_digests(path: Path) -> dict[str, bytes]:
    """Return the digests in a file by key; none where it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return {}
    data, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if checksum != checksum_of(data) or len(data) % (2 * DIGEST_BYTES):
        _LOG.warning("The images' digests are made anew: %s is damaged.", path)
        return {}
    pairs = np.frombuffer(data, dtype=np.uint8).reshape(-1, 2, DIGEST_BYTES)
    return {bytes(key).hex(): bytes(digest) for key, digest in pairs}


def _write_digests(path: Path, digests: Mapping[str, bytes]) -> None:
    """Keep digests; where that fails, the next run makes them again."""
    data = b"".join(bytes.fromhex(key) + value for key, value in digests.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data + checksum_of(data))
    except OSError as error:
        _LOG.warning("The images' digests are not kept in %s: %s", path, error)
