"""How an image becomes the input of a backbone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side, crop the centre, scale to [0, 1], normalise.

    The same steps as torchvision's classification presets, without torchvision: 0.1's
    reading, version 1 of the recipe (see `spec`).

    Attributes
    ----------
    resize : int
        Length of the short side before the crop.
    crop : int
        Side s of the square that remains, at most resize.
    interpolation : str
        Name of a Pillow filter, in lower case.
    mode : str
        "RGB" (3 channels) or "L" (greyscale, 1 channel).
    mean, std : tuple of float
        Subtracted and divided by, one for each channel.
    """

    resize: int
    crop: int
    interpolation: str = "bilinear"
    mode: str = "RGB"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def description(self) -> str:
        """The whole recipe as a text, part of digests and cache keys.

        Frozen: version 1 has this text, whatever the class is called by now.
        """
        return (
            f"Preprocess(resize={self.resize}, crop={self.crop}, "
            f"interpolation={self.interpolation!r}, mode={self.mode!r}, "
            f"mean={self.mean}, std={self.std})"
        )

    @property
    def channels(self) -> int:
        """Number of channels of the tensor."""
        return len(self.mean)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the resized and cropped image, uint8 of shape (s, s, channels)."""
        image = image.convert(self.mode)
        short = min(image.size)
        # The long side is rounded down, as in torchvision; the short one is exact.
        width, height = (int(self.resize * side / short) for side in image.size)
        resample = Image.Resampling[self.interpolation.upper()]
        image = image.resize((width, height), resample)
        left, top = round((width - self.crop) / 2), round((height - self.crop) / 2)
        image = image.crop((left, top, left + self.crop, top + self.crop))
        return np.asarray(image).reshape(self.crop, self.crop, self.channels)

    def random_pixels(
        self, image: Image.Image, random: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Return a random part of the image, perhaps mirrored, of the same shape.

        The recipe of ImageNet training: 8 to 100% of the area, with sides in a ratio
        of 3:4 to 4:3, resized to the crop.
        """
        image = image.convert(self.mode)
        box = _random_box(image.size, random)
        resample = Image.Resampling[self.interpolation.upper()]
        image = image.resize((self.crop, self.crop), resample, box=box)
        pixels = np.asarray(image).reshape(self.crop, self.crop, self.channels)
        return pixels[:, ::-1] if random.random() < 0.5 else pixels

    def normalize(
        self, pixels: Sequence[NDArray[np.uint8]], device: torch.device
    ) -> Tensor:
        """Return the batch (pixels / 255 - mean) / std, channels last in memory.

        Parameters
        ----------
        pixels : sequence of n NDArray of shape (s, s, channels)
            From `pixels`.
        device : torch.device
            Where the batch goes, still as bytes, and is normalised.

        Returns
        -------
        Tensor of shape (n, channels, s, s), float32
        """
        batch = torch.from_numpy(np.stack(pixels)).to(device)
        mean = torch.tensor(self.mean, device=device)
        std = torch.tensor(self.std, device=device)
        # (n, s, s, c) seen as (n, c, s, s) is the channels-last layout: no copy.
        return batch.float().div_(255).sub_(mean).div_(std).permute(0, 3, 1, 2)


def _random_box(
    size: tuple[int, int], random: np.random.Generator
) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a random part of an image."""
    width, height = size
    area = width * height * random.uniform(0.08, 1.0)
    ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
    across = min(float(np.sqrt(area * ratio)), width)
    down = min(float(np.sqrt(area / ratio)), height)
    left, top = random.uniform(0, width - across), random.uniform(0, height - down)
    return left, top, left + across, top + down
