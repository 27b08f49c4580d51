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
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.errors import permanent

_CHUNK = 2048
# rows -> backbone features (m, d) of those that can be read
ReadFeatures = Callable[[NDArray[np.int64]], Tensor]


@dataclass(frozen=True, eq=False)
class LocalData:
    """The labelled images of one client: which of the data set, and their labels.

    Images that can't be read are left out as they are met; ``owner`` is whose they are,
    for the error if there are too many.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    read_features: ReadFeatures
    num_classes: int
    unreadable: UnreadableImages
    owner: str

    def chunks(self, feature_map: FeatureMap) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield mapped features (m, d) and labels (m,); at least one, perhaps empty."""
        for start in range(0, max(len(self.rows), 1), _CHUNK):
            rows = self.rows[start : start + _CHUNK]
            features = self.read_features(rows)
            labels = self.labels[start : start + _CHUNK][self.unreadable.readable(rows)]
            yield feature_map(features), torch.from_numpy(labels)
        # Not before: the log lists all of them, to be mended at once.
        self.check()

    def check(self) -> None:
        """Raise if too many images turned out not to be readable."""
        with permanent():
            self.unreadable.check(self.owner, self.rows)

    @property
    def num_unreadable(self) -> int:
        """How many images turned out not to be readable so far."""
        return self.unreadable.count(self.rows)
