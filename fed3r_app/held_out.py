"""The held-out images at the server: features once, then one product an evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from fed3r_app.core import FeatureMap, count_correct

_CHUNK = 4096


class HeldOut:
    """Held-out features and labels.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        Backbone features.
    labels : Tensor of shape (n,)
        Their classes.
    feature_map : FeatureMap
        Applied once, here.
    device : torch.device
        Where the products are made.
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

    def accuracy(self, W: Tensor, present: Tensor) -> float:
        """Return the share of images whose class W (d, C) predicts."""
        W, present = W.to(self._device), present.to(self._device)
        correct = 0
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            Z, y = self._features[part], self._labels[part]
            correct += count_correct(Z, y, W, present)
        return correct / len(self)
