"""Predictions of a linear classifier, with classes nobody has left out."""

from __future__ import annotations

import torch
from torch import Tensor


def predict(Z: Tensor, W: Tensor, present: Tensor) -> Tensor:
    """Return the predicted classes (n,): the argmax of ZW over the classes present.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Features.
    W : Tensor of shape (d, C)
        Classifier.
    present : Tensor of shape (C,), bool
        Classes with training samples. The others have zero columns, whose score 0
        could win against negative ones.
    """
    if not bool(present.any()):
        raise ValueError("A classifier needs at least one class with samples, got 0.")
    scores = Z.to(W.dtype) @ W
    return scores.masked_fill(~present, -torch.inf).argmax(dim=1)


def count_correct(Z: Tensor, y: Tensor, W: Tensor, present: Tensor) -> int:
    """Return how many of the labels y (n,) the classifier predicts."""
    return int((predict(Z, W, present) == y).sum())
