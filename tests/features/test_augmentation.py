"""Random crops and mirroring, as ImageNet networks are trained with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.data.images import FileImages
from fed3r_app.data.reading import V0_1_READING, Reading
from fed3r_app.features.preprocessing import Preprocess, _random_box, _random_part
from fed3r_app.training.sgd import ImageBatches
from tests.harness.spies import spy

SIZE = 16
PREPROCESS = Preprocess(SIZE, SIZE)
GREY = Preprocess(SIZE, SIZE, mode="L", mean=(0.0,), std=(1.0,))


def ramp(width: int = 40, height: int = 30) -> Any:
    """Return an image whose red grows from left to right, its green downwards."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width).astype(np.uint8)
    pixels[..., 1] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    return Image.fromarray(pixels)


def draws(count: int = 400, image: Any = None, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return [PREPROCESS.random_pixels(image or ramp(), random) for _ in range(count)]


@pytest.mark.parametrize("preprocess", [PREPROCESS, GREY])
def test_the_shape_and_type_are_those_without_augmentation(preprocess: Any) -> None:
    plain = preprocess.pixels(ramp())
    pixels = preprocess.random_pixels(ramp(), np.random.default_rng(0))
    assert (pixels.shape, pixels.dtype) == (plain.shape, plain.dtype)


def test_a_seed_gives_the_same_images_and_another_gives_others() -> None:
    for one, other in zip(draws(5), draws(5), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(draws(1)[0], draws(1, seed=1)[0])


def test_half_of_the_images_are_mirrored_and_none_stands_on_its_head() -> None:
    images = [pixels.astype(int) for pixels in draws()]
    mirrored = np.mean([p[8, 0, 0] > p[8, -1, 0] for p in images])
    # 400 fair coins: 0.5 with a standard deviation of 0.025.
    assert 0.4 < mirrored < 0.6
    assert all(p[0, 8, 1] < p[-1, 8, 1] for p in images)


@pytest.mark.parametrize("size", [(40, 30), (8, 8), (300, 20), (1, 1)])
def test_boxes_lie_inside_and_cover_8_to_100_percent(size: Any) -> None:
    random = np.random.default_rng(0)
    shares = []
    for _ in range(500):
        left, top, right, bottom = _random_box(size, random)
        assert 0 <= left < right <= size[0] + 1e-9
        assert 0 <= top < bottom <= size[1] + 1e-9
        shares.append((right - left) * (bottom - top) / (size[0] * size[1]))
    assert max(shares) <= 1 + 1e-9
    if size == (8, 8):  # a square has room for every ratio up to about 3/4 of it
        assert min(shares) >= 0.08 - 1e-9
        assert 0.4 < np.mean(shares) < 0.6


@pytest.mark.parametrize("size", [(40, 30), (8, 8), (300, 20), (1, 1)])
@pytest.mark.parametrize("shown", [1.0, 224 / 256])
def test_small_crops_are_squares_within_what_is_shown(size: Any, shown: float) -> None:
    random = np.random.default_rng(0)
    whole, shares, lefts = min(size) * shown, [], []
    for _ in range(500):
        left, top, right, bottom = _random_part(size, (min(size),) * 2, shown, random)
        assert right - left == pytest.approx(bottom - top)
        assert (size[0] - whole) / 2 <= left < right <= (size[0] + whole) / 2 + 1e-9
        assert (size[1] - whole) / 2 <= top < bottom <= (size[1] + whole) / 2 + 1e-9
        shares.append((right - left) / whole)
        lefts.append(left)
    assert 0.8 <= min(shares) < 0.82 and 0.98 < max(shares) <= 1
    assert np.std(lefts) > 0.01 * whole


def test_crops_of_the_first_recipe_stay_as_they_were() -> None:
    first = Preprocess(SIZE, SIZE, reading=Reading(V0_1_READING))
    image, boxes = ramp(), np.random.default_rng(5)
    got = first.random_pixels(image, np.random.default_rng(5))
    box = _random_box(image.size, boxes)
    expected = np.asarray(
        image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    )
    mirrored = boxes.random() < 0.5
    assert np.array_equal(got, expected[:, ::-1] if mirrored else expected)


@pytest.fixture
def images(tmp_path: Path) -> Any:
    for i in range(3):
        ramp(20 + i, 20).save(tmp_path / f"{i}.png")
    return FileImages(tmp_path, [f"{i}.png" for i in range(3)], [0, 0, 0])


def batches(images: Any, augment: Any = None) -> Any:
    rows, cpu = np.array([2, 0]), torch.device("cpu")
    return ImageBatches(images, rows, PREPROCESS, cpu, augment)


def test_batches_are_the_clients_own_images_in_the_order_asked_for(images: Any) -> None:
    batch = batches(images)(torch.tensor([1, 0, 1]))
    pixels = [PREPROCESS.pixels(images.image(row)) for row in (0, 2, 0)]
    assert torch.equal(batch, PREPROCESS.normalize(pixels, torch.device("cpu")))


def test_an_image_is_read_once_unless_it_is_augmented(
    images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = spy(monkeypatch, FileImages, "image")
    plain = batches(images)
    one, two = plain(torch.tensor([0, 1])), plain(torch.tensor([0, 1]))
    assert torch.equal(one, two)
    assert sorted(row for _, row, _ in read) == [0, 2]
    augmented = batches(images, np.random.default_rng(0))
    one, two = augmented(torch.tensor([0, 1])), augmented(torch.tensor([0, 1]))
    assert not torch.equal(one, two)


def test_images_that_do_not_fit_in_memory_are_read_again(
    images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fed3r_app.training.sgd._KEPT_BYTES", SIZE * SIZE * 3)
    plain = batches(images)
    for _ in range(2):
        pixels = [PREPROCESS.pixels(images.image(row)) for row in (2, 0)]
        expected = PREPROCESS.normalize(pixels, torch.device("cpu"))
        assert torch.equal(plain(torch.tensor([0, 1])), expected)
    assert len(plain._kept) == 1
