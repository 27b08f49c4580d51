"""How an image becomes the input of a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fed3r_app.data.reading import V0_1_READING, Reading

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_SMALLEST_CROP = 0.8  # of the side of what is shown, in random crops
# Left, top, right and bottom of a part of an image.
_Box = tuple[float, float, float, float]
_MODES = {"RGB": 3, "L": 1}
_MOST_SQUARES = 16  # of an image's length, before what is cropped off is resized


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side, crop the centre, scale to [0, 1], normalise.

    The same steps as torchvision's classification presets, without torchvision; since
    version 2 of the recipe (see ``data.reading``) an image smaller than the input is
    enlarged bicubically, which keeps more of what there is: on all of CIFAR-100 at 224
    px Fed3R gets 66.7 % so, and 65.8 % bilinearly.

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
    reading : Reading
        How the image files are read that are to be preprocessed.
    squash : bool
        Resize both sides, not the short one: nothing is cut off unless crop < resize.
    floor : bool
        Where the crop can't be central it lies half a pixel to the left and up;
        otherwise its corner is rounded to even numbers.
    enlarge : str
        The filter for an image smaller than the input; that of ``interpolation`` in
        version 1 of the recipe.
    """

    resize: int
    crop: int
    interpolation: str = "bilinear"
    mode: str = "RGB"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    reading: Reading = field(default_factory=Reading)
    squash: bool = False
    floor: bool = False
    enlarge: str = "bicubic"

    def __post_init__(self) -> None:
        if not 0 < self.crop <= self.resize:
            raise ValueError(
                f"crop must be > 0 and at most resize = {self.resize}, got {self.crop}."
            )
        for name in (self.interpolation, self.enlarge):
            if name.upper() not in Image.Resampling.__members__:
                filters = ", ".join(
                    each.lower() for each in Image.Resampling.__members__
                )
                raise ValueError(
                    f"interpolation must be one of {filters}, got {name!r}."
                )
        if self.mode not in _MODES or len(self.mean) != _MODES[self.mode]:
            raise ValueError(
                "mode must be RGB with three means or L with one, got "
                f"{self.mode!r} with {len(self.mean)}."
            )
        if len(self.std) != len(self.mean) or not all(std > 0 for std in self.std):
            raise ValueError(
                f"std must be a number > 0 for each channel, got {self.std}."
            )

    def at(self, image_size: int) -> Preprocess:
        """Return the same for another input size; 0 is this one's own."""
        crop = image_size or self.crop
        return replace(self, resize=round(self.resize * crop / self.crop), crop=crop)

    @property
    def description(self) -> str:
        """The whole recipe as a text, part of digests and cache keys.

        Frozen: version 1 has this text, whatever the class is called by now.
        """
        text = (
            f"Preprocess(resize={self.resize}, crop={self.crop}, "
            f"interpolation={self.interpolation!r}, mode={self.mode!r}, "
            f"mean={self.mean}, std={self.std}{self._added})"
        )
        is_first = self.reading.version == V0_1_READING
        return text if is_first else f"{text} after {self.reading.description}"

    @property
    def _added(self) -> str:
        """The attributes that version 1 lacks, where they are not as they ever were."""
        added = ("squash", "floor", "enlarge")
        values = {
            name: (getattr(self, name), getattr(Preprocess, name)) for name in added
        }
        return "".join(
            f", {name}={value!r}"
            for name, (value, usual) in values.items()
            if value != usual
        )

    @property
    def channels(self) -> int:
        """Number of channels of the tensor."""
        return len(self.mean)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the resized and cropped image, uint8 of shape (s, s, channels)."""
        image = self._in_mode(image)
        if self.squash:
            size = (self.resize, self.resize)
        else:
            image = self._shortened(image)
            short, (width, height) = min(image.size), image.size
            # The long side is rounded down, as in torchvision; the short one is exact.
            size = (int(self.resize * width / short), int(self.resize * height / short))
        image = image.resize(size, self._filter(image))
        left, top = (self._offset(side) for side in size)
        image = image.crop((left, top, left + self.crop, top + self.crop))
        return np.asarray(image).reshape(self.crop, self.crop, self.channels)

    def _offset(self, side: int) -> int:
        """Return where the crop begins on a side of the resized image."""
        over = side - self.crop
        return over // 2 if self.floor else round(over / 2)

    def random_pixels(
        self, image: Image.Image, random: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Return a random part of what `pixels` shows, perhaps mirrored, of its shape.

        A square with 80 to 100 % of the side: what is trained stays near to what the
        closed form saw. In version 1 of the recipe it was that of ImageNet training.
        Where images are squashed, the part has their shape, and is squashed, too.
        """
        image = self._in_mode(image)
        if self.reading.version == V0_1_READING:
            box = _random_box(image.size, random)
        else:
            shown = self.crop / self.resize
            whole = image.size if self.squash else (min(image.size),) * 2
            box = _random_part(image.size, whole, shown, random)
        image = image.resize((self.crop, self.crop), self._filter(image), box=box)
        pixels = np.asarray(image).reshape(self.crop, self.crop, self.channels)
        return pixels[:, ::-1] if random.random() < 0.5 else pixels

    def _in_mode(self, image: Image.Image) -> Image.Image:
        return image if image.mode == self.mode else image.convert(self.mode)

    def _shortened(self, image: Image.Image) -> Image.Image:
        """Return the middle of a very long image.

        Nothing beyond it is seen after the crop, and a row of 5,000 pixels enlarged to
        256 would take a gigabyte.
        """
        longest = _MOST_SQUARES * min(image.size)
        if self.reading.version == V0_1_READING or max(image.size) <= longest:
            return image
        width, height = (min(side, longest) for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))

    def _filter(self, image: Image.Image) -> Image.Resampling:
        """Return the filter to resize an image with."""
        is_enlarged = min(image.size) < self.resize
        if is_enlarged and self.reading.version != V0_1_READING:
            return Image.Resampling[self.enlarge.upper()]
        return Image.Resampling[self.interpolation.upper()]

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


def _random_part(
    size: tuple[int, int],
    whole: tuple[int, int],
    shown: float,
    random: np.random.Generator,
) -> _Box:
    """Return a random part of the central share of the middle of an image.

    The middle is ``whole`` wide and high, and so is the part but for one factor.
    """
    scale = min(shown, 1.0)
    share = scale * random.uniform(_SMALLEST_CROP, 1.0)
    left, top = (
        (side - most * scale) / 2 + random.uniform(0, most * (scale - share))
        for side, most in zip(size, whole, strict=True)
    )
    return left, top, left + whole[0] * share, top + whole[1] * share


def _random_box(size: tuple[int, int], random: np.random.Generator) -> _Box:
    """Return a random part of an image: 8 to 100% of its area, sides 3:4 to 4:3."""
    width, height = size
    area = width * height * random.uniform(0.08, 1.0)
    ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
    across = min(float(np.sqrt(area * ratio)), width)
    down = min(float(np.sqrt(area / ratio)), height)
    left, top = random.uniform(0, width - across), random.uniform(0, height - down)
    return left, top, left + across, top + down
