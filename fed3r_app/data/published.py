"""Federations published as CSV, whose images come from their source data sets.

They are the splits of Hsu, Qi and Brown, "Federated Visual Classification with
Real-World Data Distribution" (ECCV 2020). Below data-path:

- the split files, either there or in a folder named like the archive they come in:
  `landmarks-user-160k/{federated_train.csv, test.csv}`,
  `inaturalist-user-120k/{federated_train_user_120k.csv, test.csv}`,
  `inaturalist-geo/{federated_train_geo_100.csv, …_300.csv, …_1k.csv, test.csv}`;
- Landmarks v2: the image `abc….jpg` as `train/a/b/c/abc….jpg`;
- iNaturalist 2017: the folder `train_val_images` and the annotations
  `train2017.json`, `val2017.json`, which say where each image lies.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.image_folder import existing_folder
from fed3r_app.data.images import DataSet, FileImages
from fed3r_app.data.inaturalist import find_inaturalist_images
from fed3r_app.data.split_files import read_split_file

_LOG = logging.getLogger(__name__)
# root, image ids -> paths relative to root
FindImages = Callable[[Path, Sequence[str]], list[str]]


def find_landmarks_images(root: Path, image_ids: Sequence[str]) -> list[str]:
    """Return where Landmarks v2 keeps each image below root; no file is touched."""
    del root  # the path follows from the image id
    for image_id in image_ids:
        if not re.fullmatch(r"\w{3,}", image_id):
            raise ValueError(
                "image_id of a landmark must be 3 or more letters and digits, "
                f"got {image_id!r}."
            )
    return [f"train/{key[0]}/{key[1]}/{key[2]}/{key}.jpg" for key in image_ids]


@dataclass(frozen=True)
class _Federation:
    """The files of a federation, and the finder of its images."""

    archive: str
    train_file: str
    find_images: FindImages


_FEDERATIONS = {
    "landmarks-users-160k": _Federation(
        "landmarks-user-160k", "federated_train.csv", find_landmarks_images
    ),
    "inaturalist-users-120k": _Federation(
        "inaturalist-user-120k",
        "federated_train_user_120k.csv",
        find_inaturalist_images,
    ),
    **{
        f"inaturalist-geo-{size}": _Federation(
            "inaturalist-geo",
            f"federated_train_geo_{size}.csv",
            find_inaturalist_images,
        )
        for size in ("100", "300", "1k")
    },
}
FEDERATION_NAMES = tuple(_FEDERATIONS)


def load_published_labels(name: str, data_path: str) -> DataSet:
    """Return a published federation from its split files alone.

    Labels and clients are there; the images are not, and can't be read.
    """
    return load_published(name, data_path, lambda _root, image_ids: list(image_ids))


def load_published(
    name: str, data_path: str, find_images: FindImages | None = None
) -> DataSet:
    """Return a published federation; its natural clients are users or places."""
    federation = _FEDERATIONS[name]
    find_images = find_images or federation.find_images
    root = existing_folder(name, data_path)
    train_path = _find_split_file(name, federation, root, federation.train_file)
    test_path = _find_split_file(name, federation, root, "test.csv")
    train = read_split_file(train_path, with_users=True)
    test = read_split_file(test_path, with_users=False)
    if train.num_without_user:
        left_out = "%s: left out %d rows that have no user_id."
        _LOG.warning(left_out, train_path.name, train.num_without_user)
    # One look-up for both: the annotations of iNaturalist are large.
    paths = find_images(root, train.image_ids + test.image_ids)
    # The published classes are 0 .. C-1; ranking them also serves a cut of the files.
    classes = np.unique(train.classes + test.classes)
    names = {**test.class_labels, **train.class_labels}  # else a class's number
    clients, client_names = _group_by_user(train.users)
    cut = len(train.image_ids)
    return DataSet(
        name=name,
        class_names=tuple(names.get(each, str(each)) for each in classes.tolist()),
        train=FileImages(root, paths[:cut], np.searchsorted(classes, train.classes)),
        test=FileImages(root, paths[cut:], np.searchsorted(classes, test.classes)),
        clients=clients,
        client_names=client_names,
    )


def _find_split_file(name: str, federation: _Federation, root: Path, file: str) -> Path:
    """Return where a split file lies: in the folder of its archive, or in root."""
    for path in (root / federation.archive / file, root / file):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"data-path must hold {file} when dataset = {name!r}, got {root} without it. "
        f"Unpack {federation.archive}.zip of Google's federated_vision_datasets there."
    )


def _group_by_user(
    users: Sequence[str],
) -> tuple[tuple[NDArray[np.int64], ...], tuple[str, ...]]:
    """Return the sorted rows of each user, and the users, in increasing order."""
    names, owner, sizes = np.unique(
        np.array(users), return_inverse=True, return_counts=True
    )
    order = np.argsort(owner, kind="stable").astype(np.int64)
    order.setflags(write=False)
    rows = np.split(order, np.cumsum(sizes)[:-1])
    return tuple(rows), tuple(names.tolist())
