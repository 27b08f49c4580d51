"""Image folders for a trial of nodes with their own data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.images import DataSet, EncodedImages, ImageSet
from fed3r_app.data.packaged import load_digits


def write_demo_data(
    folder: Path, nodes: Sequence[str], data: DataSet | None = None
) -> dict[str, list[str]]:
    """Return the classes of each node, its images written to ``<folder>/<node>``.

    Every class of a data set, the digits by default, is held by two neighbouring nodes,
    half of its images each: classes overlap and differ, and no image is anywhere twice.
    A folder that holds images already is left alone.
    """
    for name in nodes:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"--node must be a plain name, got {name!r}.")
    data = data or load_digits()
    assert data.test is not None
    held: dict[str, list[str]] = {}
    for number, name in enumerate(nodes):
        for part, images in (("train", data.train), ("test", data.test)):
            rows = np.flatnonzero(_owners(images.labels, len(nodes)) == number)
            if not (folder / name / part).is_dir():
                _write(images, rows, data.class_names, folder / name / part)
            present = np.unique(images.labels[rows])
            held[name] = [data.class_names[label] for label in present]
    return held


def _owners(labels: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Return the node of each image."""
    owners = np.empty_like(labels)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        # Its images in turns to a node and the next one.
        owners[rows] = (label + np.arange(len(rows)) % 2) % num_nodes
    return owners


def _write(
    images: ImageSet, rows: NDArray[np.int64], names: Sequence[str], folder: Path
) -> None:
    unfinished = folder.with_name(f".{folder.name}")
    for row in rows.tolist():
        path = unfinished / names[images.labels[row]] / f"{row:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(images, EncodedImages):  # photographs
            path.with_suffix(".jpg").write_bytes(images.file(row))
        else:
            images.image(row).save(path)
    unfinished.rename(folder)  # whole, or not there
