"""What a contribution is made of, as one digest.

Two contributions with the same digest are the same images with the same labels of the
same client, under the same backbone and feature map. It is not a digest of the sums,
whose last bits vary with the number of threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.images import DIGEST_BYTES, FileImages, ImageSet
from fed3r_app.feature_cache import FeatureCache

_VERSION = 1
Digests = NDArray[np.uint8]


def contribution_digest(
    client: str,
    samples: Iterable[tuple[bytes, str]],
    settings: Mapping[str, object],
) -> str:
    """Return the digest of a contribution, 64 hexadecimal digits.

    Parameters
    ----------
    client : str
        Its id, a salt: the same images at two clients have different digests.
    samples : iterable of (bytes, str)
        Digest and class name of each image, in any order.
    settings : mapping
        All else that the statistics depend on; values that JSON can hold.
    """
    about = json.dumps([_VERSION, client, settings], sort_keys=True)
    digest = hashlib.sha256(about.encode())
    for image, label in sorted(samples):
        digest.update(image + json.dumps(label).encode() + b"\n")
    return digest.hexdigest()


def image_digests(
    images: ImageSet, rows: NDArray[np.int64], cache_dir: Path
) -> list[bytes]:
    """Return the digest of the content of some images.

    Files are read once: their digests are kept on disk beside the features.
    """
    if not isinstance(images, FileImages):
        return [images.digest(int(row)) for row in rows]
    about = {"digests of": "image files", "data-identity": images.identity}
    folder = cache_dir / f"digests-{images.identity}"
    cache = FeatureCache(folder, DIGEST_BYTES, about, dtype="u1")
    digests, found = cache.read(rows)
    for place in np.flatnonzero(~found):
        content = images.digest(int(rows[place]))
        digests[place] = np.frombuffer(content, dtype=np.uint8)
    cache.write(rows[~found], digests[~found])
    return [bytes(digest) for digest in digests]
