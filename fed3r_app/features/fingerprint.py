"""What a contribution is made of, as one digest.

Two contributions with the same digest are the same images with the same labels of the
same client, under the same backbone and feature map. It is not a digest of the
statistics, whose last bits vary with the number of threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fed3r_app.data.images import DIGEST_BYTES, FileImages, ImageSet, OwnImages
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.cache import FeatureCache
from fed3r_app.files.tensors import read_tensors, write_tensors

_LOG = logging.getLogger(__name__)
_VERSION = 1
_KIND = "digests of images, version 1"


def contribution_digest(
    client: str,
    samples: Iterable[tuple[bytes, str]],
    settings: Mapping[str, object],
) -> str:
    """Return the digest of a contribution, 64 hexadecimal digits.

    Of the client's id, a salt: the same images at two clients have different digests;
    of the digest and class name of each sample, in any order; and of all else that the
    statistics depend on, values that JSON can hold.
    """
    about = json.dumps([_VERSION, client, settings], sort_keys=True)
    digest = hashlib.sha256(about.encode())
    for image, label in sorted(samples):
        digest.update(image + json.dumps(label).encode() + b"\n")
    return digest.hexdigest()


def backbone_settings(backbone: Backbone, dtype: str) -> dict[str, object]:
    """Return what features depend on, under the names that digests have for it."""
    return {
        "weights": backbone.digest,
        "preprocess": backbone.preprocess.description,
        "extract-dtype": dtype,
    }


def image_digests(
    images: ImageSet, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return the digest of the content of some images.

    Files are read once: their digests are kept on disk beside the features.
    """
    if isinstance(images, OwnImages):
        return _digests_by_image(images, rows, cache_dir)
    if isinstance(images, FileImages):
        return _digests_by_row(images, rows, cache_dir)
    return [images.digest(int(row)) for row in rows]


def _digests_by_row(
    images: FileImages, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return digests, kept for a data set that many clients share and that stays."""
    about = {"digests of": "image files", "data-identity": images.identity}
    folder = cache_dir / f"digests-{images.identity}"
    cache = FeatureCache(folder, DIGEST_BYTES, about, dtype="u1")
    digests, found = cache.read(rows)
    for place in np.flatnonzero(~found):
        content = images.digest(int(rows[place]))
        digests[place] = np.frombuffer(content, dtype=np.uint8)
    cache.write(rows[~found], digests[~found])
    return [bytes(digest) for digest in digests]


def _digests_by_image(
    images: OwnImages, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return digests, kept for a folder where images come and go."""
    path = cache_dir / f"digests-{images.folder_key}.safetensors"
    known = _read_digests(path)
    keys = [images.keys[row] for row in rows]
    new = {
        key: images.digest(int(row))
        for key, row in zip(keys, rows, strict=True)
        if key not in known
    }
    digests = {key: new.get(key) or known[key] for key in keys}
    if new:
        _write_digests(path, digests)
    return [digests[key] for key in keys]


def _read_digests(path: Path) -> dict[str, bytes]:
    """Return the digests in a file by key; none where it is absent or damaged."""
    if not path.exists():
        return {}
    try:
        tensors, about = read_tensors(path, _KIND)
    except (OSError, ValueError) as error:
        _LOG.warning("The images' digests are made anew: %s", error)
        return {}
    digests = map(bytes, tensors["digests"].numpy())
    return dict(zip(about["keys"], digests, strict=True))


def _write_digests(path: Path, digests: Mapping[str, bytes]) -> None:
    """Keep digests; where that fails, the next run makes them again."""
    data = np.frombuffer(b"".join(digests.values()), dtype=np.uint8)
    tensor = torch.from_numpy(data.reshape(-1, DIGEST_BYTES).copy())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, _KIND, {"digests": tensor}, {"keys": list(digests)})
    except OSError as error:
        _LOG.warning("The images' digests are not kept in %s: %s", path, error)
