"""A client's features and labels, in chunks.

Images are decoded in ``fed3r_app.data.images``; ``clients.node`` says how they become
features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.core import FeatureMap

_CHUNK = 2048
# rows -> backbone features (len(rows), d)
ReadFeatures = Callable[[NDArray[np.int64]], Tensor]


@dataclass(frozen=True, eq=False)
class LocalData:
    """The labelled images of one client: which of the data set, and their labels."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    read_features: ReadFeatures
    num_classes: int

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self, feature_map: FeatureMap) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield mapped features (m, d) and labels (m,); at least one, perhaps empty."""
        for start in range(0, max(len(self), 1), _CHUNK):
            part = slice(start, start + _CHUNK)
            features = self.read_features(self.rows[part])
            yield feature_map(features), torch.from_numpy(self.labels[part])
