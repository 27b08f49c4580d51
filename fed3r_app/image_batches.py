"""Batches of a client's images for training, decoded once where they fit in memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.data import ImageSet
from fed3r_app.preprocessing import Preprocess

_KEPT_BYTES = 512 * 2**20


class ImageBatches:
    """Maps indices into a client's images to the network's input.

    Parameters
    ----------
    images : ImageSet
        A data set.
    rows : array of shape (n,)
        The client's images.
    preprocess : Preprocess
        How an image becomes the input.
    device : torch.device
        Where the input goes.
    augment : numpy Generator or None
        Draws random crops and mirrorings; None takes the images as they are.
    """

    def __init__(
        self,
        images: ImageSet,
        rows: NDArray[np.int64],
        preprocess: Preprocess,
        device: torch.device,
        augment: np.random.Generator | None = None,
    ) -> None:
        self._images = images
        self._rows = rows
        self._preprocess = preprocess
        self._device = device
        self._augment = augment
        self._kept: dict[int, NDArray[np.uint8]] = {}
        self._room = _KEPT_BYTES

    def __call__(self, indices: Tensor) -> Tensor:
        """Return the input (m, channels, s, s) for some indices (m,)."""
        pixels = [self._pixels(int(self._rows[i])) for i in indices.tolist()]
        return self._preprocess.normalize(pixels, self._device)

    def _pixels(self, row: int) -> NDArray[np.uint8]:
        if self._augment is not None:
            image = self._images.image(row)
            return self._preprocess.random_pixels(image, self._augment)
        if row not in self._kept:
            pixels = self._preprocess.pixels(self._images.image(row))
            self._room -= pixels.nbytes
            if self._room < 0:
                return pixels
            self._kept[row] = pixels
        return self._kept[row]
