"""What a node does its work with: its images, under its backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from clients.local_data import LocalData, ReadFeatures
from clients.node_data import NodeData
from fed3r_app.backbones import load_backbone
from fed3r_app.contribution_digest import contribution_digest, image_digests
from fed3r_app.core import FeatureMap
from fed3r_app.data import ImageSet
from fed3r_app.devices import cache_dir, resolve_device
from fed3r_app.features import cached_features, extract_features
from fed3r_app.image_batches import ImageBatches
from fed3r_app.label_space import LabelSpace
from fed3r_app.progress import Progress
from fed3r_app.softmax_model import tuned_backbone


class Node(NodeData):
    """One client's side of a run, with its backbone and features.

    Parameters
    ----------
    context : Context
        Flower's: run config, node config, state.
    tuned : mapping
        Fine-tuned arrays of the backbone, by name; empty for the pretrained one.
    labels : tuple of str or None
        The classes of the whole run, where the images are the node's own.
    """

    def __init__(
        self,
        context: Context,
        tuned: Mapping[str, Tensor] | None = None,
        labels: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(context)
        self._labels = labels
        self.device = resolve_device(self.config.device)
        self.backbone = load_backbone(
            self.config.backbone,
            self.config.weights,
            self.config.image_size,
            self.dataset.feature_dim,
        )
        self._is_tuned = bool(tuned)
        if tuned:
            self.backbone = tuned_backbone(self.backbone, tuned)

    def local_data(self, *, test: bool = False) -> LocalData:
        """Return the client's images as features: those to train on, or to test."""
        dataset = self.dataset
        images = dataset.test if test else dataset.train
        if images is None:
            raise ValueError(f"Client {self.client_id} has no test images.")
        rows = np.arange(len(images)) if test else self.rows()
        labels = self._label_numbers()[images.labels[rows]]
        num_classes = len(self._labels or dataset.class_names)
        return LocalData(rows, labels, self._read_features(images), num_classes)

    def contribution_digest(self, feature_map: FeatureMap) -> str:
        """Return the digest of all that goes into this client's statistics."""
        dataset, rows = self.dataset, self.rows()
        names = [dataset.class_names[label] for label in dataset.train.labels[rows]]
        images = image_digests(dataset.train, rows, cache_dir())
        settings = {
            "weights": self.backbone.digest,
            "preprocess": repr(self.backbone.preprocess),
            "extract-dtype": self.config.extract_dtype,
            "feature-map": asdict(feature_map),
        }
        samples = zip(images, names, strict=True)
        return contribution_digest(self.client_id, samples, settings)

    def image_batches(self, augment: np.random.Generator | None) -> ImageBatches:
        """Return the client's images as input of the network."""
        return ImageBatches(
            self.dataset.train,
            self.rows(),
            self.backbone.preprocess,
            self.device,
            augment,
        )

    def _label_numbers(self) -> NDArray[np.int64]:
        """Return the run's number of each of the data set's classes."""
        names = self.dataset.class_names
        if self._labels is None:
            return np.arange(len(names))
        return LabelSpace(self._labels).numbers(f"Client {self.client_id}", names)

    def _read_features(self, images: ImageSet) -> ReadFeatures:
        device = self.device
        dtype = self.config.extract_dtype
        progress = Progress(f"client {self.client_id}, images")
        if self._is_tuned:  # never asked for again: not worth a place in the cache
            return partial(
                extract_features,
                self.backbone,
                images,
                device=device,
                dtype=dtype,
                progress=progress,
            )
        return partial(
            cached_features,
            self.backbone,
            images,
            device=device,
            dtype=dtype,
            cache_dir=cache_dir(),
            progress=progress,
        )
