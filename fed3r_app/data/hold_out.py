"""A part of the images held out for tests, where there is no test set.

Whether an image is held out follows from its content alone, so that files may be added,
renamed or replaced and no test image is ever trained on; copies of an image are on one
side.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from fed3r_app.data.digests import image_digests
from fed3r_app.data.images import DataSet, FileImages
from fed3r_app.words import plural

_LOG = logging.getLogger(__name__)
_DIGESTS = 2**64


def hold_out(dataset: DataSet, share: float, cache_dir: Path, owner: str) -> DataSet:
    """Return a data set with about a share of its training images as its test set.

    One that has test images stays as it is. The rows of the others stay the same, too,
    so that a split over clients does not change when one image is mended. A class all
    of whose images are held out is named in the log: nothing is moved for its sake.
    ``owner`` is whose images they are.
    """
    train = dataset.train
    if not share or dataset.test is not None or not isinstance(train, FileImages):
        return dataset
    digests = image_digests(train, np.arange(len(train)), cache_dir)
    # A file that can't be opened has no digest; it is missed where it is read.
    held = np.array([bool(d) and _uniform(d) < share for d in digests], dtype=bool)
    images = plural(len(train), "image")
    _LOG.info("%s: %d of %s held out for the test.", owner, held.sum(), images)
    if held.all():  # the sentence may go to the server: it tells no number
        raise ValueError(
            f"test-share must leave {owner} images to train on, got {share:g}, which "
            "holds out all."
        )
    if not held.any():
        return dataset
    lost = sorted(set(train.labels[held]) - set(train.labels[~held]))
    names = tuple(dataset.class_names[label] for label in lost)
    if names:
        text = "%s: all images of %s are held out: none is left to train on."
        _LOG.warning(text, owner, ", ".join(names))
    test = train.subset(np.flatnonzero(held))
    return replace(dataset, test=test, held_out=held, held_out_classes=names)


def _uniform(digest: bytes) -> float:
    """Return a number between 0 and 1 that follows from the content of an image."""
    return int.from_bytes(digest[:8], "big") / _DIGESTS
