"""What every source returns, and a check of what it says about its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fed3r_app.features.preprocessing import Preprocess

Build = Callable[[], nn.Module]
Pipeline = Callable[[Image.Image], Tensor]
# In grey levels. Another filter or another part of the picture differs by dozens.
EXACT, ROUNDED = 0.01, 2.0


@dataclass(frozen=True)
class Network:
    """A network without its classifier: (n, channels, s, s) -> (n, d)."""

    digest: str  # names the weights, and all else that is not in the preprocessing
    preprocess: Preprocess
    build: Build  # called once, when the network is needed
    known_dim: int | None = None  # d, where known without building the network
    # Smallest and largest feature, where known; it holds for any weights.
    feature_range: tuple[float, float] | None = None


def check_preprocess(
    backbone: str, preprocess: Preprocess, pipeline: Pipeline, most: float = EXACT
) -> None:
    """Raise unless a preprocessing does what a library's own pipeline does.

    Both get noise: a wide picture, a high one, and one that has to be enlarged. They
    may differ by ``most`` grey levels.
    """
    random, side = np.random.default_rng(0), preprocess.resize
    scale = 255 * torch.tensor(preprocess.std)[:, None, None]
    for width, height in ((2 * side + 1, side + 14), (side, side + 37), (33, 40)):
        noise = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        if preprocess.mode != image.mode:
            image = image.convert(preprocess.mode)
        ours = preprocess.normalize([preprocess.pixels(image)], torch.device("cpu"))[0]
        theirs = pipeline(image)
        if ours.shape != theirs.shape or not bool(
            ((ours - theirs).abs() * scale <= most).all()
        ):
            raise untranslatable(backbone, "a step that is unknown here")


def untranslatable(backbone: str, what: str) -> ValueError:
    """Return the error for a preprocessing that is not resize, crop and normalise."""
    return ValueError(
        f"backbone = {backbone!r} must prepare its images by resizing, cropping the "
        f"centre and normalising, got {what}. Write a function that returns the "
        "network and a preprocessing, and name it with python: instead."
    )
