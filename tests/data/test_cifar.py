"""CIFAR read from small files in torchvision's layout."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torchvision.datasets

from fed3r_app.data import load_dataset

RNG = np.random.default_rng(0)


def draw_pixels(num_images: Any) -> Any:
    return RNG.integers(0, 256, size=(num_images, 3072), dtype=np.uint8)


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(root: Any) -> Any:
    """Write six batches of two images; return the pixels of the first batch."""
    folder = root / "cifar-10-batches-py"
    write(folder / "batches.meta", {"label_names": [f"kind {c}" for c in range(10)]})
    first = draw_pixels(2)
    for number in range(1, 6):
        data = first if number == 1 else draw_pixels(2)
        batch = {"data": data, "labels": [number, 0]}
        write(folder / f"data_batch_{number}", batch)
    write(folder / "test_batch", {"data": draw_pixels(2), "labels": [7, 8]})
    return first


def write_cifar100(root: Any) -> Any:
    folder = root / "cifar-100-python"
    write(folder / "meta", {"fine_label_names": [f"kind {c}" for c in range(100)]})
    labels = {"fine_labels": [5, 99, 0], "coarse_labels": [1] * 3}
    write(folder / "train", {"data": draw_pixels(3), **labels})
    write(folder / "test", {"data": draw_pixels(1), "fine_labels": [42]})
    return folder


def python2_pickle(pixels: Any, labels: Any) -> Any:
    """Return {"data": pixels, "labels": labels} as Python 2 with NumPy 1 wrote it."""
    rows, columns = (struct.pack("<i", number) for number in pixels.shape)
    parts = [
        b"\x80\x02}(U\x04data",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R",
        b"(K\x01J" + rows + b"J" + columns,
        b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R",
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
        b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb",
        b"U\x06labels](",
        *(b"K" + bytes([label]) for label in labels),
    ]
    return b"".join(parts) + b"eu."


def test_cifar10_is_read_batch_after_batch(tmp_path: Path) -> None:
    first = write_cifar10(tmp_path)
    dataset: Any = load_dataset("cifar10", str(tmp_path))
    assert dataset.class_names[3] == "kind 3"
    assert dataset.train.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert dataset.test.labels.tolist() == [7, 8]
    red, green, blue = first[1].reshape(3, 32, 32)
    expected = np.stack([red, green, blue], axis=-1)
    assert np.array_equal(np.asarray(dataset.train.image(1)), expected)


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    dataset: Any = load_dataset("cifar100", str(tmp_path))
    assert len(dataset.class_names) == 100
    assert dataset.train.labels.tolist() == [5, 99, 0]
    assert dataset.test.labels.tolist() == [42]


def write_numbered(root: Any, num_images: int) -> None:
    """Write training images that begin with their number, of class number % 100."""
    pixels = np.zeros((num_images, 3072), dtype=np.uint8)
    pixels[:, :2] = np.arange(num_images, dtype="<u2")[:, None].view(np.uint8)
    labels = [number % 100 for number in range(num_images)]
    write(write_cifar100(root) / "train", {"data": pixels, "fine_labels": labels})


def numbers(images: Any) -> Any:
    first = np.stack(
        [np.asarray(images.image(i))[0, :2, 0] for i in range(len(images))]
    )
    return first.copy().view("<u2")[:, 0]


def test_cifar100_small_is_two_parts_of_the_training_images(tmp_path: Path) -> None:
    write_numbered(tmp_path, 12_500)
    small: Any = load_dataset("cifar100-small", str(tmp_path))
    assert small.class_names == load_dataset("cifar100", str(tmp_path)).class_names
    train, held_out = numbers(small.train), numbers(small.test)
    assert (len(train), len(held_out)) == (10_000, 2_000)
    assert len({*train, *held_out}) == 12_000
    assert max(train) > 12_000 and max(held_out) > 12_000
    assert np.array_equal(small.train.labels, train % 100)
    assert np.array_equal(small.test.labels, held_out % 100)
    # On every machine the same.
    assert held_out[:5].tolist() == [8, 9, 18, 20, 22]


def test_cifar100_small_needs_enough_images(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    with pytest.raises(ValueError, match=r"must hold 12,000 .*'cifar100-small', got 3"):
        load_dataset("cifar100-small", str(tmp_path))


def test_a_file_of_python_2_is_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    pixels = draw_pixels(2)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(python2_pickle(pixels, [3, 4]))
    test: Any = load_dataset("cifar10", str(tmp_path)).test
    assert test.labels.tolist() == [3, 4]
    assert np.asarray(test.image(0))[0, 0].tolist() == pixels[0, ::1024].tolist()


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "hacked"),)

    folder = write_cifar100(tmp_path)
    write(folder / "test", {"data": Attack(), "fine_labels": []})
    with pytest.raises(ValueError, match=r"test must be a file of the CIFAR .*mkdir"):
        load_dataset("cifar100", str(tmp_path))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"data": draw_pixels(2)[:, :9], "fine_labels": [0, 1]},
            r"shape \(2, 3072\), got uint8 of shape \(2, 9\)",
        ),
        ({"data": draw_pixels(1), "fine_labels": [100]}, "0 to 99, got 100 to 100"),
        ({"data": draw_pixels(1), "labels": [1]}, "fine_labels not found"),
        ([1, 2], "data, fine_labels not found"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: Any, sentence: str
) -> None:
    write(write_cifar100(tmp_path) / "train", content)
    with pytest.raises(ValueError, match=rf"train must .*{sentence}"):
        load_dataset("cifar100", str(tmp_path))
    (tmp_path / "cifar-100-python" / "meta").write_bytes(b"not a pickle")
    with pytest.raises(ValueError, match=r"meta must be a file of the CIFAR archive"):
        load_dataset("cifar100", str(tmp_path))


def test_without_files_and_network_the_archive_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", refuse)
    (write_cifar100(tmp_path) / "test").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"without test in cifar-100-python, .* failed \(.*no route to host.*\)\. "
        r"Unpack cifar-100-python\.tar\.gz from https",
    ):
        load_dataset("cifar100", str(tmp_path))
    with pytest.raises(ValueError, match=r"data-path must name a folder .*'cifar10'"):
        load_dataset("cifar10", "")


def test_what_is_missing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(root: Any, download: Any) -> None:
        assert download
        write_cifar10(tmp_path)

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fake)
    assert len(load_dataset("cifar10", str(tmp_path)).train) == 10
