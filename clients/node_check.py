"""What a node would do in a run, found out beforehand without sending anything."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from clients.node import Node
from fed3r_app.config import DEFAULTS, Value
from fed3r_app.data.images import ImageSet
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.features.extraction import extract_features, readable_rows
from fed3r_app.files.row_cache import cache_dir
from fed3r_app.wire import StatisticsBuilder, count_bytes

_BATCH = 32


@dataclass(frozen=True)
class NodeCheck:
    """What a node has, and what a run would take.

    Parameters
    ----------
    classes : dict
        The number of training images of each class.
    num_test_images : int
        How many images are for the evaluation.
    num_unreadable : int
        How many files can't be read, which the log lists.
    problem : str
        Why the node could not take part; empty if it can.
    backbone : str
        The network, and the size of its input.
    seconds : float
        About how long the first pass over all images takes.
    upload_bytes : int
        The size of the statistics, at most.
    """

    classes: dict[str, int]
    num_test_images: int
    num_unreadable: int
    problem: str
    backbone: str
    seconds: float
    upload_bytes: int

    @property
    def num_images(self) -> int:
        """Number of training images."""
        return sum(self.classes.values())


def check_node(node_config: dict[str, Value], settings: dict[str, Value]) -> NodeCheck:
    """Return what a node has; ``settings`` are those of a run that differ from default.

    All images are read, and a batch goes through the network, twice.
    """
    run_config = {**DEFAULTS, **settings, "dataset": "local"}
    node = Node(Context(0, 0, node_config, RecordDict(), run_config), ConfigRecord())
    dataset, rows = node.dataset, node.rows()
    unreadable, problem = UnreadableImages(node.config.max_unreadable), ""
    readable = _readable(node, dataset.train, rows, unreadable)
    try:
        unreadable.check(f"Client {node.client_id}", rows)
    except ValueError as error:
        problem = str(error)
    num_test = len(dataset.test) if dataset.test else 0
    bad_tests = UnreadableImages(1.0)
    if dataset.test:
        num_test = len(_readable(node, dataset.test, np.arange(num_test), bad_tests))
    labels = dataset.train.labels[readable]
    counts = np.bincount(labels, minlength=len(dataset.class_names))
    spec = node.backbone.spec
    return NodeCheck(
        {n: int(c) for n, c in zip(dataset.class_names, counts, strict=True) if c},
        num_test,
        unreadable.count(rows) + len(dataset.test or ()) - num_test,
        problem,
        f"{spec.name}, {node.backbone.preprocess.crop} px",
        _seconds_per_image(node, readable) * (len(readable) + num_test),
        _upload_bytes(node, labels),
    )


def _readable(
    node: Node,
    images: ImageSet,
    rows: NDArray[np.int64],
    unreadable: UnreadableImages,
) -> NDArray[np.int64]:
    """Return those of some rows whose images can be read."""
    reading = node.backbone.preprocess.reading
    return readable_rows(
        *(node.backbone, images, rows, cache_dir()),
        dtype=node.config.extract_dtype,
        read=lambda row: images.image(row, reading),
        unreadable=unreadable,
    )


def _seconds_per_image(node: Node, rows: NDArray[np.int64]) -> float:
    """Return how long one image of a batch takes, once the network is ready."""
    batch, seconds = rows[:_BATCH], 0.0
    for _ in range(2 if len(batch) else 0):
        began = time.perf_counter()
        images, dtype = node.dataset.train, node.config.extract_dtype
        extract_features(node.backbone, images, batch, device=node.device, dtype=dtype)
        seconds = time.perf_counter() - began
    return seconds / max(len(batch), 1)


def _upload_bytes(node: Node, labels: NDArray[np.int64]) -> int:
    """Return the bytes of statistics of as many images with any features."""
    dim, config = node.backbone.dim, node.config
    # More than dim images of the same classes do not add a row to the factor.
    _, first = np.unique(labels, return_index=True)
    kept = np.unique(np.concatenate([first, np.arange(min(len(labels), dim))]))
    builder = StatisticsBuilder(len(node.dataset.class_names), config.upload)
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(len(kept), dim, generator=generator)
    builder.add(Z, torch.from_numpy(labels[kept.astype(np.int64)]))
    return count_bytes(RecordDict({"arrays": builder.pack(config.upload_dtype)}))
