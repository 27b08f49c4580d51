"""Image sets: what they return, what names them, what they say when they fail."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fed3r_app.data.images import ArrayImages, EncodedImages, FileImages
from fed3r_app.data.reading import UnreadableImage

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, size=(4, 5, 6, 3), dtype=np.uint8)
LABELS = [2, 0, 1, 1]


def encode(pixels: Any, mode: str = "RGB") -> Any:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


def array_images(pixels: Any, root: Any) -> Any:
    return ArrayImages(pixels, LABELS[: len(pixels)])


def encoded_images(pixels: Any, root: Any) -> Any:
    return EncodedImages([encode(each) for each in pixels], LABELS[: len(pixels)])


def file_images(pixels: Any, root: Any) -> Any:
    paths = []
    for each in pixels:
        content = encode(each)
        path = root / f"{hash(content):x}.png"
        if not path.exists():
            path.write_bytes(content)
        paths.append(path.name)
    return FileImages(root, paths, LABELS[: len(pixels)])


@pytest.fixture(params=[array_images, encoded_images, file_images])
def make_images(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda pixels: request.param(pixels, tmp_path)


def test_images_come_back_as_they_went_in(make_images: Any) -> None:
    images = make_images(PIXELS)
    assert len(images) == 4
    assert images.labels.tolist() == LABELS
    for row in range(4):
        image = images.image(row)
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), PIXELS[row])
    with pytest.raises(ValueError, match="read-only"):
        images.labels[0] = 7


def test_the_identity_names_the_images_and_their_order(make_images: Any) -> None:
    assert make_images(PIXELS).identity == make_images(PIXELS).identity
    assert int(make_images(PIXELS).identity, 16) >= 0
    changed = PIXELS.copy()
    changed[2, 0, 0, 0] ^= 1
    variants = [PIXELS, changed, PIXELS[::-1], PIXELS[:3], PIXELS[:0]]
    assert len({make_images(variant).identity for variant in variants}) == 5
    reshaped = make_images(PIXELS.reshape(4, 6, 5, 3))
    assert make_images(PIXELS).identity != reshaped.identity


def test_the_time_of_a_file_shows_in_the_identity_and_its_folder_does_not(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    first = file_images(PIXELS, old).identity
    old.rename(new)
    assert file_images(PIXELS, new).identity == first
    path = next(new.iterdir())
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert file_images(PIXELS, new).identity != first


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1"])
def test_an_image_is_of_eight_bits(mode: Any) -> None:
    image = EncodedImages([encode(PIXELS[0], mode)], [0]).image(0)
    assert image.mode == ("L" if mode in "L1" else "RGB")


def test_an_image_is_read_without_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(encode(PIXELS[0]))
    images = FileImages(tmp_path, ["lost.png", "good.png"], [0, 1])
    assert np.array_equal(np.asarray(images.image(1)), PIXELS[0])
    with pytest.raises(UnreadableImage, match=r"lost\.png .* No such file"):
        images.image(0)


def test_missing_files_are_noticed_and_the_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(encode(PIXELS[0]))
    images = FileImages(tmp_path, ["a.png", "b.png", "c/d.png"], [0, 1, 2])
    with pytest.raises(
        FileNotFoundError, match=r"all images, .* without some of them; .* a\.png\."
    ):
        _ = images.identity


@pytest.mark.parametrize("keep", [0, 20, 60])
def test_a_damaged_file_is_named(tmp_path: Path, keep: Any) -> None:
    (tmp_path / "cut.png").write_bytes(encode(PIXELS[0])[:keep])
    with pytest.raises(ValueError, match=r"cut\.png must be a readable image"):
        FileImages(tmp_path, ["cut.png"], [0]).image(0)


def test_pixels_must_be_bytes_in_rgb_with_a_label_each() -> None:
    with pytest.raises(ValueError, match=r"each of the 4 images, got shape \(3,\)"):
        ArrayImages(PIXELS, [0, 1, 2])
    with pytest.raises(ValueError, match=r"uint8 of shape .* got float64"):
        ArrayImages(PIXELS.astype(float), LABELS)
    with pytest.raises(ValueError, match=r"got uint8 of shape \(4, 5, 6\)"):
        ArrayImages(PIXELS[..., 0], LABELS)
