"""What a classifier gets right, as counts that add up over clients.

To add a metric, write it as a function of the counts and put it into ``METRICS``;
summaries and metrics files take it from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_TOP = 5  # as ImageNet's top-5 accuracy


@dataclass(frozen=True, eq=False)
class Metrics:
    """Counts of predictions.

    Parameters
    ----------
    correct, total : int
        Samples predicted right, and all samples.
    top5 : int or None
        Samples whose class is among the five best; None where it is not known.
    confusion : Tensor of shape (C, C), int64, or None
        Samples of class i that were predicted as class j.
    """

    correct: int
    total: int
    top5: int | None = None
    confusion: Tensor | None = None

    @classmethod
    def of(cls, scores: Tensor, y: Tensor) -> Metrics:
        """Return the counts of scores (n, C) for labels y (n,)."""
        num_classes = scores.shape[1]
        predicted = scores.argmax(dim=1)
        best = scores.topk(min(_TOP, num_classes), dim=1)
        # Classes that are never predicted have scores of -inf: they are no guesses.
        hits = (best.indices == y[:, None]) & best.values.isfinite()
        pairs = torch.bincount(y * num_classes + predicted, minlength=num_classes**2)
        return cls(
            correct=int((predicted == y).sum()),
            total=len(y),
            top5=int(hits.any(dim=1).sum()),
            confusion=pairs.reshape(num_classes, num_classes),
        )

    def __add__(self, other: Metrics) -> Metrics:
        """Return the counts of all samples of both."""
        one, two = self.confusion, other.confusion
        known = self.top5 is not None and other.top5 is not None
        return Metrics(
            self.correct + other.correct,
            self.total + other.total,
            (self.top5 or 0) + (other.top5 or 0) if known else None,
            one + two if one is not None and two is not None else None,
        )

    @property
    def accuracy(self) -> float:
        """Share of samples predicted right."""
        return self.correct / self.total

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean over the classes with samples of the share predicted right."""
        if self.confusion is None:
            return None
        samples = self.confusion.sum(dim=1)
        recall = self.confusion.diagonal()[samples > 0] / samples[samples > 0]
        return float(recall.mean())

    @property
    def top5_accuracy(self) -> float | None:
        """Share of samples whose class is among the five best."""
        return None if self.top5 is None else self.top5 / self.total

    def confusions(self) -> list[tuple[int, int, int]]:
        """Return (class, predicted class, samples) wherever there are samples."""
        if self.confusion is None:
            return []
        i, j = self.confusion.nonzero(as_tuple=True)
        columns = (i.tolist(), j.tolist(), self.confusion[i, j].tolist())
        return list(zip(*columns, strict=True))

    def values(self) -> dict[str, float]:
        """Return every metric that these counts give, by name."""
        found = {name: metric(self) for name, metric in METRICS.items()}
        return {name: value for name, value in found.items() if value is not None}


METRICS: dict[str, Callable[[Metrics], float | None]] = {
    "accuracy": lambda metrics: metrics.accuracy,
    "balanced_accuracy": lambda metrics: metrics.balanced_accuracy,
    "top5_accuracy": lambda metrics: metrics.top5_accuracy,
}
