"""What a contribution is made of, as one digest.

Two contributions with the same digest are the same images with the same labels of the
same client, under the same backbone and feature map. It is not a digest of the
statistics, whose last bits vary with the number of threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from fed3r_app.features.backbone import Backbone

_VERSION = 1


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
        "preprocess": backbone.recipe,
        "extract-dtype": dtype,
    }
