"""A part held out by content: which images, and that none is ever trained on."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fed3r_app.data import DataSet, load_local, split_rows
from fed3r_app.data.hold_out import hold_out
from fed3r_app.data.image_folder import load_imagefolder

SHARE = 0.3
LAYOUTS: dict[str, Callable[[str], DataSet]] = {
    "imagefolder": lambda path: load_imagefolder("imagefolder", path),
    "local": load_local,
}


def content(number: int) -> bytes:
    """Return an image file, another one for each number."""
    rng, file = np.random.default_rng([9, number]), io.BytesIO()
    Image.fromarray(rng.integers(256, size=(4, 4), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def is_held_out(image: bytes, share: float = SHARE) -> bool:
    """Return the side of an image, worked out anew."""
    digest = hashlib.blake2b(image, digest_size=16).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


TEST = [n for n in range(99) if is_held_out(content(n))]
TRAIN = [n for n in range(99) if not is_held_out(content(n))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(40):
        folder = tmp_path / "images" / ("ape", "bee")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(content(number))
    return tmp_path / "images"


@pytest.fixture(params=LAYOUTS)
def load(request: pytest.FixtureRequest, root: Path) -> Callable[[], Any]:
    """Read the folder anew, as another process would."""

    def read(share: float = SHARE) -> DataSet:
        dataset = LAYOUTS[request.param](str(root))
        return hold_out(dataset, share, root.parent / "cache", "Client x")

    return read


def sides(dataset: Any) -> tuple[set[bytes], set[bytes]]:
    """Return the digests of the images to train on, and of those to test with."""
    train = {dataset.train.digest(int(row)) for row in dataset.training_rows}
    test = {dataset.test.digest(row) for row in range(len(dataset.test))}
    return train, test


def digests(numbers: list[int]) -> set[bytes]:
    return {hashlib.blake2b(content(n), digest_size=16).digest() for n in numbers}


def test_the_side_follows_from_the_content(load: Any) -> None:
    train, test = sides(load())
    assert test == digests([n for n in TEST if n < 40])
    assert train == digests([n for n in TRAIN if n < 40])


def test_about_the_share_is_held_out(load: Any) -> None:
    assert sum(is_held_out(content(n)) for n in range(2000)) == pytest.approx(600, 0.1)
    assert load(0.0).test is None
    smaller, larger = (sides(load(share))[1] for share in (0.2, 0.6))
    assert smaller < larger


def test_copies_are_on_one_side(load: Any, root: Path) -> None:
    for number in (TEST[0], TRAIN[0]):
        (root / "bee" / f"copy {number}.png").write_bytes(content(number))
    train, test = sides(load())
    assert not train & test
    copies = [row for row in range(len(load().train)) if row in load().training_rows]
    assert len(copies) == len([n for n in TRAIN if n < 40]) + 1


@pytest.mark.parametrize("change", ["add", "rename", "replace", "mend"])
def test_no_change_of_files_moves_a_test_image_into_training(
    load: Any, root: Path, change: str
) -> None:
    if change == "mend":
        (root / "ape" / "0.png").write_bytes(b"")
    before = sides(load())[1]
    if change == "add":
        for number in range(40, 99):
            (root / "ape" / f"a{number}.png").write_bytes(content(number))
    elif change == "rename":
        for path in sorted(root.rglob("*.png")):
            path.rename(path.with_name(f"new {path.name}"))
        (root / "ape").rename(root / "zebra")
    elif change == "replace":  # each by the image after it
        for number in range(40):
            path = root / ("ape", "bee")[number % 2] / f"{number}.png"
            path.write_bytes(content(number + 1))
    else:
        (root / "ape" / "0.png").write_bytes(content(0))
    train, test = sides(load())
    assert not before & train
    assert not test & train


def test_a_test_set_that_is_there_stays_the_test_set(tmp_path: Path) -> None:
    for part, number in (("train", TEST[0]), ("train", TRAIN[0]), ("test", TRAIN[1])):
        folder = tmp_path / part / "ape"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(content(number))
    dataset = hold_out(load_local(str(tmp_path)), SHARE, tmp_path / "cache", "x")
    assert dataset.training_rows.tolist() == [0, 1]
    assert sides(dataset)[1] == digests([TRAIN[1]])


def test_a_class_that_is_held_out_whole_is_named(
    load: Any, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "owl").mkdir()
    (root / "owl" / "1.png").write_bytes(content(TEST[-1]))
    with caplog.at_level(logging.WARNING):
        dataset = load()
    assert dataset.held_out_classes == ("owl",)
    assert dataset.class_names == ("ape", "bee", "owl")  # and nothing is moved
    assert "Client x: all images of owl are held out" in caplog.text


def test_one_image_must_be_left_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "ape").mkdir()
    (tmp_path / "ape" / "1.png").write_bytes(content(TEST[0]))
    with pytest.raises(ValueError, match=r"test-share must leave Client x images"):
        hold_out(load_local(str(tmp_path)), SHARE, tmp_path / "cache", "Client x")


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "by-class"])
def test_a_split_gives_test_images_to_nobody(root: Path, scheme: str) -> None:
    whole = LAYOUTS["imagefolder"](str(root))
    dataset = hold_out(whole, SHARE, root.parent / "cache", "x")
    parts = split_rows(dataset, scheme, 3, 0.5, 0)
    rows = np.sort(np.concatenate(parts))
    assert np.array_equal(rows, dataset.training_rows)
    # The others are where they would be without.
    for part, before in zip(parts, split_rows(whole, scheme, 3, 0.5, 0), strict=True):
        assert set(part) <= set(before)
