"""One small picture in every awkward way that files hold pictures, and bad files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 8
# Grey values of all kinds, 0 and 255 among them, without any symmetry.
GREY: NDArray[np.uint8] = np.arange(0, 256, dtype=np.uint8)[:: 255 // 63][:64]
GREY = np.random.default_rng(3).permutation(np.append(GREY[:-1], 255))
GREY = GREY.reshape(SIDE, SIDE).astype(np.uint8)
_PICTURE = Image.fromarray(GREY)
_ORIENTATION, _BITS, _PHOTOMETRIC = 0x0112, 258, 262


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int, kind: str = "png", **options: Any) -> bytes:
    """Return the picture as a camera held otherwise would save it."""
    # How to undo what EXIF asks for.
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    image = _PICTURE.transpose(undo[orientation])
    return save(image, kind, exif=exif, **options)


def _sixteen_bits(values: NDArray[Any], kind: str = "png", **options: Any) -> bytes:
    return save(Image.fromarray(values.astype(np.uint16)), kind, **options)


def _white_is_zero() -> bytes:
    data = _sixteen_bits(65535 - GREY.astype(np.uint16) * 257, "tiff")
    # Pillow writes its own tag over a given one: change it in the file.
    entry = struct.pack("<HHIHH", _PHOTOMETRIC, 3, 1, 1, 0)
    assert data.count(entry) == 1
    return data.replace(entry, struct.pack("<HHIHH", _PHOTOMETRIC, 3, 1, 0, 0))


def _big_endian() -> bytes:
    # A TIFF of Motorola's byte order, by hand: Pillow writes the other one only.
    pixels = (GREY.astype(">u2") * 257).astype(">u2").tobytes()
    entries = [
        (256, 3, SIDE), (257, 3, SIDE), (_BITS, 3, 16), (259, 3, 1),
        (_PHOTOMETRIC, 3, 1), (273, 4, 8), (277, 3, 1), (278, 3, SIDE),
        (279, 4, len(pixels)),
    ]  # fmt: skip
    table = struct.pack(">H", len(entries))
    for tag, kind, value in entries:
        number = struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value)
        table += struct.pack(">HHI", tag, kind, 1) + number
    return b"MM\0*" + struct.pack(">I", 8 + len(pixels)) + pixels + table + bytes(4)


def _palette(transparent: bool = False) -> bytes:
    image = Image.fromarray(255 - GREY).copy()
    image.putpalette([255 - i for i in range(256) for _ in range(3)], "RGB")
    assert image.mode == "P"
    # What is transparent is white, whatever the palette says.
    options = {"transparency": int(255 - GREY.max())} if transparent else {}
    return save(image, "png", **options)


def _transparent(mode: str) -> bytes:
    alpha = np.where(GREY == 255, 0, 255).astype(np.uint8)
    below = np.where(GREY == 255, 17, GREY).astype(np.uint8)  # not to be seen
    bands = [Image.fromarray(below)] * (len(mode) - 1) + [Image.fromarray(alpha)]
    return save(Image.merge(mode, bands), "png")


def _cmyk() -> bytes:
    empty, black = Image.new("L", (SIDE, SIDE)), Image.fromarray(255 - GREY)
    return save(Image.merge("CMYK", [empty, empty, empty, black]), "tiff")


def _pages() -> bytes:
    other = Image.fromarray(GREY.T.copy())
    return save(_PICTURE, "tiff", save_all=True, append_images=[other])


# Each of them is the picture, exactly.
SAME: dict[str, Callable[[], bytes]] = {
    "plain.png": lambda: save(_PICTURE, "png"),
    "grey 16 bits.png": lambda: _sixteen_bits(GREY.astype(np.uint16) * 257),
    "grey 16 bits.tif": lambda: _sixteen_bits(GREY.astype(np.uint16) * 257, "tiff"),
    "big endian.tif": _big_endian,
    "white is zero.tif": _white_is_zero,
    "grey 32 bits.tif": lambda: save(
        Image.fromarray(((GREY.astype(np.int64) * 16843009) - 2**31).astype(np.int32)),
        "tiff",
    ),
    "float.tif": lambda: save(Image.fromarray(GREY / np.float32(255)), "tiff"),
    "rgb.webp": lambda: save(_PICTURE.convert("RGB"), "webp", lossless=True),
    "cmyk.tif": _cmyk,
    "palette.png": _palette,
    "transparent palette.png": lambda: _palette(transparent=True),
    "rgba.png": lambda: _transparent("RGBA"),
    "la.png": lambda: _transparent("LA"),
    "pages.tif": _pages,
    "größe 图 \U0001f600.png": lambda: save(_PICTURE, "png"),
    **{f"exif {i}.png": partial(turned, i) for i in range(2, 9)},
    "exif.tif": lambda: turned(6, "tiff"),
    "exif.webp": lambda: turned(6, "webp", lossless=True),
}


def twelve_bits() -> bytes:
    """Return the picture with 12 bits in a file of 16: 0 to 4095 of 65535."""
    return _sixteen_bits(np.rint(GREY / 255 * 4095))


def huge_png(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, and is not."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(64))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


_NOISE = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
# Content, and what the log says of it.
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated.jpg": (
        lambda: save(Image.fromarray(_NOISE), "jpeg")[:2000],
        "image file is truncated",
    ),
    "truncated.png": (
        lambda: save(Image.fromarray(_NOISE), "png")[:2000],
        "truncated",
    ),
    "empty.png": (lambda: b"", "an empty file"),
    "page.jpg": (
        lambda: b"<!DOCTYPE html><html><body>Not found</body></html>",
        "a web page or another text, not an image",
    ),
    "notes.jpg": (lambda: b"no image at all", "a file that is no image"),
    "huge.png": (
        lambda: huge_png(14000, 12000),
        "168 megapixels, of which at most 50 are read",
    ),
    "huger.png": (
        lambda: huge_png(30000, 30000),
        "more than 179 megapixels, of which at most 50 are read; make it smaller, or",
    ),
    "float.tif": (
        lambda: save(Image.fromarray(GREY.astype(np.float32)), "tiff"),
        "values from 0 to 255, where numbers with a point should be from 0 to 1",
    ),
    "not finite.tif": (
        lambda: save(
            Image.fromarray(np.where(GREY > 9, np.nan, 0).astype(np.float32)), "tiff"
        ),
        "not finite|values from nan",
    ),
}
