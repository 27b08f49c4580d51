"""What a node is and has: its name, its images, its backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from clients.local_data import LocalData, ReadFeatures
from fed3r_app.backbones import load_backbone
from fed3r_app.config import Config
from fed3r_app.contribution_digest import contribution_digest, image_digests
from fed3r_app.core import FeatureMap
from fed3r_app.data import DataSet, load_dataset, split_rows
from fed3r_app.devices import cache_dir, resolve_device
from fed3r_app.features import cached_features, extract_features
from fed3r_app.image_batches import ImageBatches
from fed3r_app.progress import Progress
from fed3r_app.softmax_model import tuned_backbone


class Node:
    """One client's side of a run.

    Parameters
    ----------
    context : Context
        Flower's: run config, node config, state.
    tuned : mapping
        Fine-tuned arrays of the backbone, by name; empty for the pretrained one.
    """

    def __init__(
        self, context: Context, tuned: Mapping[str, Tensor] | None = None
    ) -> None:
        self._node_config = context.node_config
        self._node_id = context.node_id
        self.config = Config.from_run_config(context.run_config)
        self.device = resolve_device(self.config.device)
        self.backbone = load_backbone(
            self.config.backbone,
            self.config.weights,
            self.config.image_size,
            self._dataset().feature_dim,
        )
        self._is_tuned = bool(tuned)
        if tuned:
            self.backbone = tuned_backbone(self.backbone, tuned)

    @property
    def client_id(self) -> str:
        """The client's name: ``client-id``, else its partition, else its node's id."""
        for key in ("client-id", "partition-id"):
            if key in self._node_config:
                return str(self._node_config[key])
        return str(self._node_id)

    @property
    def num_partitions(self) -> int:
        """How many clients there are; 0 where the node can't know."""
        return int(self._node_config.get("num-partitions", 0))

    def local_data(self) -> LocalData:
        """Return the client's images as features."""
        dataset, rows = self._dataset(), self._rows()
        labels, num_classes = dataset.train.labels[rows], len(dataset.class_names)
        return LocalData(rows, labels, self._read_features(), num_classes)

    def contribution_digest(self, feature_map: FeatureMap) -> str:
        """Return the digest of all that goes into this client's statistics."""
        dataset, rows = self._dataset(), self._rows()
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
            self._dataset().train,
            self._rows(),
            self.backbone.preprocess,
            self.device,
            augment,
        )

    def _dataset(self) -> DataSet:
        return load_dataset(self.config.dataset, self.config.data_path)

    def _rows(self) -> NDArray[np.int64]:
        """Return which images of the data set are this client's."""
        if not {"partition-id", "num-partitions"} <= self._node_config.keys():
            raise ValueError(
                "The node config must give partition-id and num-partitions, got "
                f"{dict(self._node_config)}. Start the SuperNode with --node-config "
                '"partition-id=0 num-partitions=3".'
            )
        config = self.config
        split = split_rows(
            self._dataset(),
            config.partition,
            self.num_partitions,
            config.alpha,
            config.seed,
        )
        return split[int(self._node_config["partition-id"])]

    def _read_features(self) -> ReadFeatures:
        images, device = self._dataset().train, self.device
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
