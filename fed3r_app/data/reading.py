"""How the bytes of an image file become pixels: one reader for all that is read.

The reading is the first half of the recipe by which features are made; the second, in
``features.preprocessing``, resizes and normalises. A recipe has one version for both.

=======  =============================================================================
version
=======  =============================================================================
1        0.1's: ``convert("RGB")`` and nothing else. It stays for what was made by it.
2        upright by EXIF; greyscale of 16 and 32 bits scaled and not clipped;
         transparent pixels on white; the first page of several; sizes limited
=======  =============================================================================
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fed3r_app.errors import is_transient

V0_1_READING = 1
RECIPE_VERSION = 2
RANGE = "range"

_LOG = logging.getLogger(__name__)
# What is read at the most: 8192 x 6144, whose pixels take 200 MB, and as much again
# while they are converted. Half of it for what takes more: greyscale of 32 bits passes
# through NumPy, grey with transparency through two modes, WebP is decoded by frames.
_MAX_PIXELS = 48 * 2**20
_HEAVY_MODES, _HEAVY_FORMATS = ("I", "F", "LA", "PA"), ("WEBP",)
# Larger ones are read one after the other, whatever the number of threads.
_LARGE_PIXELS = 16 * 2**20
_ONE_LARGE_IMAGE = threading.Lock()
# Values that span less than this share of their type's range give flat images.
_FLAT = 1 / 8
_NOTED: set[str] = set()  # what was logged already
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Of TIFF: tags, and values of the last two.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _SIGNED = 0, 2
_PERCENTILES = re.compile(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)")
# The limits above are stricter.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class UnreadableImage(ValueError):
    """An image that can't be read; the message names it and says why."""


@dataclass(frozen=True)
class Reading:
    """How images are read.

    Parameters
    ----------
    version : int
        Of the recipe, see above.
    intensity : str
        `intensity` in the run config: how greyscale of more than 8 bits becomes 0 to
        255. "range" scales the range of its type, "1-99" that between two percentiles
        of each image. Version 1 does not know it.
    """

    version: int = RECIPE_VERSION
    intensity: str = RANGE

    def __post_init__(self) -> None:
        read_intensity(self.intensity)

    def read(self, file: BinaryIO, name: str) -> Image.Image:
        """Return the image in an open file, RGB or greyscale of 8 bits (L).

        ``name`` is what an error calls it.
        """
        read = _read_as_v0_1 if self.version == V0_1_READING else self._read
        try:
            return read(file, name)
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises anything for a damaged file
            if is_transient(error):
                raise
            reason = _reason(error, file).rstrip(".")
            raise UnreadableImage(
                f"{name} must be a readable image, got: {reason}."
            ) from error

    def _read(self, file: BinaryIO, name: str) -> Image.Image:
        with _open(file) as image:
            is_large = image.width * image.height > _LARGE_PIXELS
            with _ONE_LARGE_IMAGE if is_large else nullcontext():
                _limit_size(image)
                image.load()
                if getattr(image, "is_animated", False) and image.format != "MPO":
                    _note("it has several pages, of which the first is read", name)
                return _upright(self._flat(image, name), image, name)

    def _flat(self, image: Image.Image, name: str) -> Image.Image:
        """Return the image as RGB or L, whatever it is."""
        if image.mode.startswith(("I", "F")):
            return self._eight_bits(image, name)
        if image.has_transparency_data:
            image = image if image.mode == "RGBA" else image.convert("RGBA")
            white = Image.new("RGB", image.size, "white")
            white.paste(image, mask=image.getchannel("A"))
            return white
        if image.mode in ("RGB", "L"):
            return image
        return image.convert("L" if image.mode == "1" else "RGB")

    def _eight_bits(self, image: Image.Image, name: str) -> Image.Image:
        """Return greyscale of more than 8 bits in 8 bits."""
        values, lowest, highest = _values_and_range(image)
        least, most = float(values.min()), float(values.max())
        percentiles = read_intensity(self.intensity)
        if not np.isfinite([least, most]).all():
            raise ValueError("values that are not finite")
        if percentiles:
            lowest, highest = np.percentile(values, percentiles).tolist()
        elif most > highest or least < lowest:
            raise ValueError(
                f"values from {least:g} to {most:g}, where numbers with a point "
                'should be from 0 to 1; intensity="1-99" takes any'
            )
        elif most - least < _FLAT * (highest - lowest):
            hint = 'intensity="1-99" spreads the values of each image'
            _note(
                f"it uses little of its type's range ({most:g} at most); {hint}", name
            )
        width = max(highest - lowest, np.finfo(np.float64).tiny)
        if values.dtype == np.uint16:  # a look at each value is quicker than sums
            pixels = _scaled(np.arange(2**16), lowest, width)[values]
        else:
            parts = [_scaled(part, lowest, width) for part in _parts(values)]
            pixels = np.concatenate(parts).reshape(values.shape)
        # Pillow inverts such images of 8 bits, and no others.
        tags = getattr(image, "tag_v2", {})
        is_inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        return Image.fromarray(255 - pixels if is_inverted else pixels)

    @property
    def description(self) -> str:
        """The reading as a text, part of digests and cache keys; of version 2 on."""
        return f"Reading(version={self.version}, intensity={self.intensity!r})"


def read_intensity(text: str) -> tuple[float, float] | None:
    """Return the two percentiles of `intensity`, None for "range", or raise."""
    if text == RANGE:
        return None
    match = _PERCENTILES.fullmatch(text)
    if not match or not 0 <= float(match[1]) < float(match[2]) <= 100:
        raise ValueError(
            f'intensity must be "{RANGE}" or two percentiles such as "1-99", got '
            f"{text!r}."
        )
    return float(match[1]), float(match[2])


def _read_as_v0_1(file: BinaryIO, name: str) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


def _open(file: BinaryIO) -> Image.Image:
    """Return an image that is not decoded yet; `_limit_size` has to follow.

    Pillow's own limit refuses JPEGs that can be decoded at a fraction. It stays for all
    other formats, whose parts (tiles, frames) may be larger than they say.
    """
    try:
        return Image.open(file)
    except Image.DecompressionBombError:
        file.seek(0)
    with _ONE_LARGE_IMAGE:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=["JPEG"])
        except UnidentifiedImageError:
            raise _too_large(f"more than {2 * (limit or 0) / 1e6:.0f}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _limit_size(image: Image.Image) -> None:
    """Have an image that is too large decoded at a fraction of its size, or raise."""
    pixels = image.width * image.height
    is_heavy = image.mode in _HEAVY_MODES or image.format in _HEAVY_FORMATS
    most = _MAX_PIXELS // 2 if is_heavy else _MAX_PIXELS
    if pixels <= most:
        return
    # A progressive JPEG is held as a whole before it can be made smaller.
    progressive = image.info.get("progressive") or image.info.get("progression")
    if image.format in ("JPEG", "MPO") and not progressive:
        for scale in (2, 4, 8):
            if pixels <= most * scale**2:
                image.draft(image.mode, (image.width // scale, image.height // scale))
                return
    raise _too_large(f"{pixels / 1e6:.0f}", most)


def _too_large(megapixels: str, most: int = _MAX_PIXELS) -> ValueError:
    return ValueError(
        f"{megapixels} megapixels, of which at most {most / 1e6:.0f} are read; make it "
        "smaller, or save it as a plain JPEG"
    )


def _upright(image: Image.Image, opened: Image.Image, name: str) -> Image.Image:
    """Return the image turned as its EXIF data say."""
    try:
        orientation = opened.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises anything for damaged data
        _note("its EXIF data are damaged: it is taken to be upright", name)
        return image
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def _values_and_range(image: Image.Image) -> tuple[NDArray[Any], float, float]:
    """Return the values of deep greyscale, and the range of their type."""
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
    if image.mode == "F":
        return values, 0.0, 1.0
    if image.mode != "I":  # I;16 in one byte order or the other
        return values.astype(np.uint16, copy=False), 0.0, 2.0 ** min(bits, 16) - 1
    if not tags:  # PGM, whose values Pillow scales to 16 bits
        return values, 0.0, 2.0**16 - 1
    if tags.get(_SAMPLE_FORMAT, (1,))[0] == _SIGNED:
        return values, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    return values.view(np.uint32), 0.0, 2.0**bits - 1


def _parts(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values bit by bit: as float64 they take eight times their memory."""
    flat, size = values.reshape(-1), 2**20
    return (flat[start : start + size] for start in range(0, len(flat), size))


def _scaled(values: NDArray[Any], lowest: float, width: float) -> NDArray[np.uint8]:
    """Return values as 0 to 255; what lies outside of the range is at its end."""
    shares = np.clip((values.astype(np.float64) - lowest) / width, 0, 1)
    return np.rint(shares * 255).astype(np.uint8)


def _reason(error: Exception, file: BinaryIO) -> str:
    """Return why a file can't be read, in words for those who have to mend it."""
    if not isinstance(error, UnidentifiedImageError):
        return str(error) or repr(error)
    file.seek(0)
    start = file.read(256).lstrip()
    if not start:
        return "an empty file"
    if start.startswith(b"<"):
        return "a web page or another text, not an image"
    return "a file that is no image, or of a kind that Pillow does not know"


def _note(what: str, name: str) -> None:
    """Log something about an image, once for each kind of thing and process."""
    kind = what.partition(" (")[0]
    if kind not in _NOTED:
        _NOTED.add(kind)
        _LOG.warning("%s: %s. Others like it are not named.", name, what)
