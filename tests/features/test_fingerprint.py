"""The digest of a contribution: of what went in, and of nothing else."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fed3r_app.data.digests import image_digests
from fed3r_app.data.images import ArrayImages, EncodedImages, FileImages, OwnImages
from fed3r_app.features.fingerprint import contribution_digest
from tests.harness.spies import spy

SUFFIX = ".bin"
SETTINGS = {"weights": "w", "feature-map": {"dim": 3}}
SAMPLES = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.text(max_size=3)))


def digest(samples: Any, client: str = "7", **changes: Any) -> str:
    return contribution_digest(client, samples, SETTINGS | changes)


@given(SAMPLES, st.randoms())
def test_the_order_of_the_images_does_not_show(samples: Any, random: Any) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)
    assert digest(samples) == digest(shuffled)


@given(SAMPLES, SAMPLES)
def test_other_samples_have_another_digest(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (sorted(one) == sorted(other))


def test_client_and_settings_are_in_it() -> None:
    samples = [(b"0" * 16, "cat")]
    digests = {digest(samples, c, weights=w) for c in "78" for w in "vw"}
    assert len(digests) == 4
    assert all(len(digest) == 64 for digest in digests)


def pixels(n: int = 4) -> Any:
    return np.random.default_rng(0).integers(256, size=(n, 5, 6, 3), dtype=np.uint8)


@pytest.fixture(params=[FileImages, OwnImages])
def files(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Make a folder of images, and the set of them."""
    for i, image in enumerate(pixels()):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    return lambda n=4: request.param(tmp_path, [f"{i}.png" for i in range(n)], [0] * n)


def test_every_kind_of_image_has_a_digest_of_its_own(
    files: Any, tmp_path: Path
) -> None:
    encoded = [(tmp_path / f"{i}.png").read_bytes() for i in range(4)]
    rows, cache = np.array([3, 0, 0, 1]), tmp_path / "cache"
    held = ArrayImages(pixels(), [0] * 4), EncodedImages(encoded, [0] * 4)
    for images in (*held, files()):
        three, zero, again, one = image_digests(images, rows, cache)
        assert zero == again
        assert len({three, zero, one}) == 3


def test_a_file_is_read_once_and_again_when_it_changes(
    files: Any, tmp_path: Path
) -> None:
    rows, cache, path = np.arange(4), tmp_path / "cache", tmp_path / "2.png"
    first = image_digests(files(), rows, cache)
    content, status = path.read_bytes(), path.stat()
    path.write_bytes(content[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert image_digests(files(), rows, cache) == first  # as the features are
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    changed = image_digests(files(), rows, cache)
    assert [a == b for a, b in zip(first, changed, strict=True)] == [1, 1, 0, 1]
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))  # another time, the same content
    assert image_digests(files(), rows, cache) == first


def test_a_damaged_cache_is_not_believed(files: Any, tmp_path: Path) -> None:
    first = image_digests(files(), np.arange(4), tmp_path / "cache")
    (path,) = (p for p in (tmp_path / "cache").rglob("*") if p.suffix == SUFFIX)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert image_digests(files(), np.arange(4), tmp_path / "cache") == first


@pytest.mark.parametrize("files", [OwnImages], indirect=True)
def test_a_new_image_in_a_folder_is_the_only_one_read(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, read = tmp_path / "cache", spy(monkeypatch, OwnImages, "digest")
    three = image_digests(files(3), np.arange(3), cache)
    four = image_digests(files(4), np.arange(4), cache)
    assert [row for _, row in read] == [0, 1, 2, 3]
    assert four[:3] == three


def test_digests_that_can_not_be_kept_are_made_all_the_same(
    files: Any, tmp_path: Path
) -> None:
    kept = image_digests(files(), np.arange(4), tmp_path / "cache")
    (tmp_path / "no folder").touch()
    assert image_digests(files(), np.arange(4), tmp_path / "no folder") == kept
