"""What a node is and has: its name, its settings, its images and their features.

Torch is imported where it is used: a plain hello does without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from logging import INFO
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.common.logger import log
from numpy.typing import NDArray

from clients.own_choice import own_choice
from fed3r_app.config import Config, without_later_keys
from fed3r_app.console.progress import Progress
from fed3r_app.data import (
    LOCAL,
    DataSet,
    ImageSet,
    load_dataset,
    load_local,
    split_rows,
)
from fed3r_app.data.hold_out import hold_out
from fed3r_app.data.label_space import LabelSpace
from fed3r_app.data.reading import RECIPE_VERSION
from fed3r_app.data.seen_images import remove_gone
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.errors import is_transient, permanent
from fed3r_app.files.row_cache import cache_dir
from fed3r_app.wire.hello import Hello, read_labels, read_reading
from fed3r_app.wire.versions import CODE_VERSION, installed_version

if TYPE_CHECKING:
    from torch import Tensor

    from clients.local_data import LocalData, ReadFeatures
    from fed3r_app.core import FeatureMap
    from fed3r_app.features.backbone import Backbone
    from fed3r_app.training.sgd import ImageBatches
    from fed3r_app.wire.parity import Parity


def client_name(context: Context) -> str:
    """Return a client's name: ``client-id``, else its partition, else its node's id."""
    for key in ("client-id", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    return str(context.node_id)


class NodeData:
    """One client's name and images."""

    def __init__(self, context: Context) -> None:
        self._node_config = context.node_config
        self._node_id = context.node_id
        self.client_id = client_name(context)
        with permanent():
            run_config = without_later_keys(context.run_config)
            self.config = Config.from_run_config(run_config)

    def hello(self) -> Hello:
        """Return what the client says of itself."""
        is_local, is_open = self.config.is_local, not self.sends_only_protected_sums
        # Its own images are no part of anything.
        hello = Hello(self.client_id, 0 if is_local else self.num_partitions)
        if is_open:
            hello = replace(hello, num_samples=len(self.rows()))
        if not is_local:
            return hello
        hello = replace(
            hello, code_version=CODE_VERSION, installed_version=installed_version()
        )
        known, names = set(self.config.given_labels), self.dataset.class_names
        if not is_open:
            with permanent():  # here: the server must not see the names of others
                space = LabelSpace(self.config.given_labels)
                space.numbers(f"Client {self.client_id}", names)
            return hello
        test = self.dataset.test
        return replace(
            hello,
            # Where the server knows all classes, the others.
            class_names=tuple(name for name in names if name not in known),
            num_test_images=len(test) if test else 0,
        )

    @property
    def sends_only_protected_sums(self) -> bool:
        """Whether nothing else may leave the node, not even numbers of images."""
        return self.config.sends_only_protected_sums

    @property
    def num_partitions(self) -> int:
        """How many clients there are; 0 where the node can't know."""
        return int(self._node_config.get("num-partitions", 0))

    @cached_property
    def dataset(self) -> DataSet:
        """The node's own images, or the data set that the clients share."""
        with permanent():
            return self._load()

    def _load(self) -> DataSet:
        data_path = str(self._node_config.get("data-path", ""))
        if not self.config.is_local:
            if data_path:
                raise ValueError(
                    f"dataset must be {LOCAL!r} to use the images of node "
                    f"{self.client_id} (data-path = {data_path!r}), got "
                    f"{self.config.dataset!r}."
                )
            return load_dataset(
                self.config.dataset, self.config.data_path, self.config.test_share
            )
        if not data_path or "client-id" not in self._node_config:
            raise ValueError(
                f"The node config must give data-path and client-id when dataset = "
                f"{LOCAL!r}, got {dict(self._node_config)} for node {self._node_id}. "
                "Start the SuperNode with --node-config "
                '\'data-path="/data" client-id="clinic-7"\'.'
            )
        owner = f"Client {self.client_id}"
        try:
            dataset = load_local(data_path)
        except (OSError, ValueError) as error:
            if is_transient(error):
                raise
            raise ValueError(f"{owner}: {error}") from None
        return hold_out(dataset, self.config.test_share, cache_dir(), owner)

    def rows(self) -> NDArray[np.int64]:
        """Return which images of the data set are this client's."""
        if self.config.is_local:
            return self.dataset.training_rows
        with permanent():
            return self._part()

    def _part(self) -> NDArray[np.int64]:
        """Return which images of the data set that the clients share are its own."""
        dataset = self.dataset
        if not {"partition-id", "num-partitions"} <= self._node_config.keys():
            raise ValueError(
                "The node config must give partition-id and num-partitions, got "
                f"{dict(self._node_config)}. Start the SuperNode with --node-config "
                '"partition-id=0 num-partitions=3".'
            )
        config, parts = self.config, self.num_partitions
        how = (config.partition, parts, config.alpha, config.seed)
        return split_rows(dataset, *how)[int(self._node_config["partition-id"])]


class Node(NodeData):
    """One client's side of a run, with its backbone and features.

    Parameters
    ----------
    request : ConfigRecord
        The config of a request: the classes of the whole run, where the images are the
        node's own, and how images are read.
    tuned : mapping
        Fine-tuned arrays of the backbone, by name; empty for the pretrained one.
    """

    def __init__(
        self,
        context: Context,
        request: ConfigRecord,
        tuned: Mapping[str, Tensor] | None = None,
    ) -> None:
        from fed3r_app.features.backbone import resolve_device
        from fed3r_app.training.model import tuned_backbone

        super().__init__(context)
        self._labels = read_labels(request)
        with permanent():
            self.device = resolve_device(self.config.device)
            self.backbone = self._load_backbone(request)
        self._is_tuned = bool(tuned)
        if tuned:
            self.backbone = tuned_backbone(self.backbone, tuned)

    def _load_backbone(self, request: ConfigRecord) -> Backbone:
        from fed3r_app.features.backbone import load_backbone
        from fed3r_app.features.spec import BackboneSpec

        config = self.config
        recipe, size = read_reading(request) or (RECIPE_VERSION, config.input_size)
        name, weights = own_choice(self._node_config, config, self.client_id)
        spec = BackboneSpec(name, weights, size, recipe, intensity=config.intensity)
        return load_backbone(spec, self.dataset.feature_dim)

    def check_map(self, feature_map: FeatureMap) -> FeatureMap:
        """Return the map of a request, which must be of this node's features and run.

        Sums are d x d, whatever little a request says of d.
        """
        d, rf_dim = self.backbone.dim, self.config.rf_dim
        if feature_map.d != d or feature_map.rf_dim not in (0, rf_dim):
            raise ValueError(
                f"The feature map must lead from {d} features to 0 or rf-dim = "
                f"{rf_dim} random ones, got {feature_map.d} and {feature_map.rf_dim}."
            )
        return feature_map

    def local_data(self, *, test: bool = False) -> LocalData:
        """Return the client's images as features: those to train on, or to test."""
        from clients.local_data import LocalData

        dataset = self.dataset
        images = dataset.test if test else dataset.train
        self._remove_gone()
        if images is None:
            raise ValueError(f"Client {self.client_id} has no test images.")
        rows = np.arange(len(images)) if test else self.rows()
        unreadable = UnreadableImages(self.config.max_unreadable)
        return LocalData(
            rows,
            self._label_numbers()[images.labels[rows]],
            self._read_features(images, unreadable),
            self.num_classes,
            unreadable,
            f"Client {self.client_id}",
        )

    def _remove_gone(self) -> None:
        """Remove what is cached of images that the node's folder has no more."""
        if not self.config.is_local:
            return
        data_path = str(self._node_config["data-path"])
        if gone := remove_gone(self.dataset, data_path, cache_dir()):
            text = "Client %s: removed from the cache, as their images are gone: %d"
            log(INFO, text, self.client_id, gone)

    @property
    def num_classes(self) -> int:
        """Number of classes of the run."""
        return len(self._labels or self.dataset.class_names)

    def parity(self) -> Parity | None:
        """Return what this node makes of the built-in picture, if it has a network."""
        from fed3r_app.features.parity import measure_parity

        dtype = self.config.extract_dtype
        return measure_parity(self.backbone, self.device, dtype, cache_dir())

    def contribution_digest(
        self, feature_map: FeatureMap, rows: NDArray[np.int64]
    ) -> str:
        """Return the digest of all that goes into this client's statistics.

        ``rows`` are the images that they were made of.
        """
        from fed3r_app.data.digests import image_digests
        from fed3r_app.features.fingerprint import (
            backbone_settings,
            contribution_digest,
        )

        dataset = self.dataset
        names = [dataset.class_names[label] for label in dataset.train.labels[rows]]
        images = image_digests(dataset.train, rows, cache_dir())
        settings = backbone_settings(self.backbone, self.config.extract_dtype)
        settings = {**settings, "feature-map": asdict(feature_map)}
        samples = zip(images, names, strict=True)
        return contribution_digest(self.client_id, samples, settings)

    def image_batches(
        self, augment: np.random.Generator | None
    ) -> tuple[ImageBatches, NDArray[np.int64]]:
        """Return the client's images as input of the network, and their labels (n,)."""
        from fed3r_app.features.extraction import readable_rows
        from fed3r_app.training.sgd import ImageBatches

        data, images, backbone = self.local_data(), self.dataset.train, self.backbone
        rows, unreadable = data.rows, data.unreadable
        batches = ImageBatches(images, rows, backbone.preprocess, self.device, augment)
        readable = readable_rows(
            *(backbone, images, rows, cache_dir()),
            dtype=self.config.extract_dtype,
            read=batches.try_out,
            unreadable=unreadable,
        )
        data.check()
        return batches.only(readable), data.labels[unreadable.readable(rows)]

    def _label_numbers(self) -> NDArray[np.int64]:
        """Return the run's number of each of the data set's classes."""
        names = self.dataset.class_names
        if self._labels is None:
            return np.arange(len(names))
        with permanent():
            return LabelSpace(self._labels).numbers(f"Client {self.client_id}", names)

    def _read_features(
        self, images: ImageSet, unreadable: UnreadableImages
    ) -> ReadFeatures:
        from fed3r_app.features.extraction import cached_features, extract_features

        read = partial(cached_features, cache_dir=cache_dir())
        if self._is_tuned:  # never asked for again: not worth a place in the cache
            read = partial(extract_features)
        dtype = self.config.extract_dtype
        progress = Progress(f"client {self.client_id}, images")
        options = {"device": self.device, "dtype": dtype, "progress": progress}
        return partial(read, self.backbone, images, **options, unreadable=unreadable)
