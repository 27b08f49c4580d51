"""The server's test images: which there are, their features, and evaluations on them.

Features are extracted once; an evaluation is then one product.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from fed3r_app.config import Config
from fed3r_app.console.progress import Progress
from fed3r_app.core import (
    Classifier,
    FeatureMap,
    HeadOptions,
    Metrics,
    RidgeStatistics,
    solve_head,
)
from fed3r_app.core.names import METHODS
from fed3r_app.data import LOCAL, DataSet, ImageSet, load_dataset, load_local
from fed3r_app.data.label_space import LabelSpace
from fed3r_app.data.reading import V0_1_READING
from fed3r_app.data.seen_images import remove_gone
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.extraction import cached_features
from fed3r_app.files.row_cache import cache_dir

_LOG = logging.getLogger(__name__)
_CHUNK = 4096
# Up to so many features, solving each head takes a second or so.
_MAX_COMPARED_DIM = 2000


class EvaluationSet:
    """The features (n, d) of test images, mapped once, and their labels (n,).

    The products are made on the device.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        feature_map: FeatureMap,
        device: torch.device,
    ) -> None:
        # float32 holds backbone features exactly and halves the random ones; the
        # products below are float64 again.
        parts = [feature_map(part).float() for part in features.split(_CHUNK)]  # type: ignore[no-untyped-call]
        self._features = torch.cat(parts).to(device)
        self._labels = labels.to(device)
        self._device = device

    def __len__(self) -> int:
        return len(self._labels)

    def evaluate(self, classifier: Classifier) -> Metrics:
        """Return what a classifier gets right on these images."""
        classifier = classifier.to(self._device)
        parts = zip(
            self._features.split(_CHUNK),  # type: ignore[no-untyped-call]
            self._labels.split(_CHUNK),  # type: ignore[no-untyped-call]
            strict=True,
        )
        return reduce(add, (Metrics.of(classifier.scores(Z), y) for Z, y in parts))


def compare_heads(
    config: Config,
    stats: RidgeStatistics,
    ridge_lambda: Callable[[], float],
    test_set: EvaluationSet | None,
) -> dict[str, float]:
    """Return the accuracy on the test images of each method with these statistics.

    For comparison: it decides nothing. Empty without test images, with very many
    features, and where there is one method only. ``ridge_lambda`` is called where there
    is something to compare.
    """
    methods = config.methods_of_same_statistics
    if not test_set or stats.d > _MAX_COMPARED_DIM or len(methods) < 2:
        return {}
    accuracies: dict[str, float] = {}
    try:
        normalize, intercept = config.normalize_classes, config.fit_intercept
        options = HeadOptions(ridge_lambda(), normalize, intercept)
        for method in methods:
            classifier = solve_head(METHODS[method].head, stats, options)
            accuracies[method] = test_set.evaluate(classifier).accuracy
    except ValueError as error:  # a comparison must not end a run
        _LOG.warning("The methods are not all compared: %s", error)
    return accuracies


@dataclass(frozen=True, eq=False)
class ServerData:
    """What the server can read."""

    # The data set of the run, or the images at the server where those of the run are
    # the nodes' own; None where it has none.
    dataset: DataSet | None
    is_local: bool  # whether the images of the run are the nodes' own
    unreadable: UnreadableImages  # of the test images, found when features are made

    @classmethod
    def load(cls, config: Config) -> ServerData:
        """Return what there is for the run config."""
        name, data_path = config.dataset, config.data_path
        unreadable = UnreadableImages(config.max_unreadable)
        if name != LOCAL:
            dataset = load_dataset(name, data_path, config.test_share)
            return cls(dataset, False, unreadable)
        if not data_path:
            return cls(None, True, unreadable)
        dataset = load_local(data_path)
        remove_gone(dataset, data_path, cache_dir())
        return cls(dataset, True, unreadable)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the run; () where only the nodes know them."""
        return () if self.is_local or not self.dataset else self.dataset.class_names

    def identity(self, recipe: int) -> str | None:
        """Return a digest that names the training images; None if they are the nodes'.

        Images that are mended stay the same ones since version 2 of the recipe. Those
        that are missing are reported here, ahead of any work of the clients.
        """
        data = self.dataset
        if self.is_local or data is None:
            return None
        identity = data.train.identity  # looks up every file
        return identity if recipe == V0_1_READING else data.train.listing

    @property
    def feature_dim(self) -> int | None:
        """Number of features, where the data set has features and no images."""
        return self.dataset.feature_dim if self.dataset else None

    @property
    def test_images(self) -> ImageSet | None:
        """What the server evaluates on."""
        data = self.dataset
        if self.is_local and data:  # whatever lies at the server is for tests
            return data.test or data.train
        return data.test if data else None

    def test_labels(self, class_names: tuple[str, ...]) -> Tensor:
        """Return the numbers (n,) of the test images' classes among all.

        Of those that can be read, once features have been made of them.
        """
        images, data = self.test_images, self.dataset
        if images is None or data is None:
            return torch.empty(0, dtype=torch.int64)
        labels = images.labels[self.unreadable.readable(np.arange(len(images)))]
        if self.is_local:
            space = LabelSpace(class_names)
            labels = space.numbers("The test images", data.class_names)[labels]
        return torch.from_numpy(labels.copy())

    def test_features(
        self, backbone: Backbone, device: torch.device, dtype: str
    ) -> Tensor | None:
        """Return the features (n, d) of the test images, where there are any.

        Of those that can be read; raise if too many can't.
        """
        test = self.test_images
        if test is None:
            return None
        rows = np.arange(len(test))
        features = cached_features(
            backbone,
            test,
            rows,
            device=device,
            dtype=dtype,
            cache_dir=cache_dir(),
            progress=Progress("test images"),
            unreadable=self.unreadable,
        )
        self.unreadable.check("The server's test set", rows)
        return features

    @property
    def num_unreadable(self) -> int:
        """How many test images turned out not to be readable."""
        test = self.test_images
        return 0 if test is None else self.unreadable.count(np.arange(len(test)))
