"""The client of the closed-form methods: features in, statistics out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from clients.local_data import LocalData
from fed3r_app.core import (
    Classifier,
    FeatureMap,
    FeatureMoments,
    LeaveOneOut,
    Metrics,
)
from fed3r_app.wire import Fit, StatisticsBuilder, unpack_classifier

# The softmax that the reported loss is of; the paper's temperature for ridge scores.
_TEMPERATURE = 0.1


@dataclass(eq=False)
class StatisticsClient(NumPyClient):
    """Makes the statistics of a client's images and evaluates classifiers on them.

    The feature map leads from backbone features to those whose statistics are taken.
    """

    data: LocalData
    feature_map: FeatureMap
    form: str  # ``upload``
    dtype: str  # ``upload-dtype``

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the arrays of the statistics record, n and no further metrics."""
        builder, n = StatisticsBuilder(self.data.num_classes, self.form), 0
        for Z, y in self.data.chunks(self.feature_map):
            builder.add(Z, y)
            n += len(y)
        return list(builder.arrays(self.dtype)), n, {}

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Return mean cross-entropy, n and the number of correct predictions."""
        classifier = unpack_classifier(parameters)
        loss, correct, n = torch.zeros((), dtype=torch.float64), 0, 0
        for Z, y in self.data.chunks(self.feature_map):  # once: features may take long
            logits = classifier.logits(Z)
            loss += cross_entropy(logits / _TEMPERATURE, y, reduction="sum")
            correct += int((classifier.predict(Z) == y).sum())
            n += len(y)
        return float(loss) / max(n, 1), n, {"correct": correct}

    def fit_of(
        self,
        classifier: Classifier,
        temperatures: Sequence[float],
        leave_one_out: LeaveOneOut | None = None,
    ) -> Fit:
        """Return how a classifier fits the images, at each of some temperatures.

        The losses are with each image left out, where it can be.
        """
        totals = torch.zeros(len(temperatures), dtype=torch.float64)
        metrics = left_out = Metrics(0, 0)
        for Z, y in self.data.chunks(self.feature_map):
            logits = classifier.logits(Z)
            metrics += Metrics(_count_right(logits, y, classifier.present), len(y))
            if leave_one_out:
                logits = leave_one_out.logits(logits, y)
            left_out += Metrics(_count_right(logits, y, classifier.present), len(y))
            for index, temperature in enumerate(temperatures):
                totals[index] += cross_entropy(logits / temperature, y, reduction="sum")
        return Fit(totals, metrics, left_out)

    def moments(self) -> FeatureMoments:
        """Return the moments from which the server chooses a kernel width."""
        parts = [FeatureMoments.of(Z) for Z, _ in self.data.chunks(self.feature_map)]
        return sum(parts[1:], start=parts[0])


def _count_right(logits: Tensor, y: Tensor, present: Tensor) -> int:
    """Return how many labels y (n,) have the largest of the logits (n, C)."""
    return int((logits.masked_fill(~present, -torch.inf).argmax(dim=1) == y).sum())
