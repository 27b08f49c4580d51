"""CIFAR-10 and CIFAR-100, from the files that torchvision downloads.

Layout: `data-path/cifar-10-batches-py/{data_batch_1 … data_batch_5, test_batch,
batches.meta}` or `data-path/cifar-100-python/{train, test, meta}`. Files that are
there are read as they are; missing ones are downloaded where there is a network.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fed3r_app.data.image_folder import named_folder
from fed3r_app.data.images import ArrayImages, DataSet


@dataclass(frozen=True)
class _Layout:
    """Where a CIFAR set keeps what."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    prefix: str  # of the keys for labels and their names

    def missing(self, root: Path) -> list[str]:
        """Return the files that are not below root."""
        files = (*self.train, *self.test, self.meta)
        return [file for file in files if not (root / self.folder / file).is_file()]


_LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        prefix="",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        prefix="fine_",
    ),
}

# Of cifar100-small: how many images to train on and to evaluate on, drawn by this seed.
_SMALL, _SMALL_SEED = (10_000, 2_000), 0

# All that the pickles of CIFAR need. A pickle can otherwise run any code.
_ALLOWED = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def load_cifar(name: str, data_path: str) -> DataSet:
    """Return cifar10 or cifar100 from data-path, downloaded if it is not there."""
    layout = _LAYOUTS[name]
    root = named_folder(name, data_path)
    if layout.missing(root):
        _download(name, layout, root)
    folder = root / layout.folder
    names_key, label_key = layout.prefix + "label_names", layout.prefix + "labels"
    meta = _read_pickle(folder / layout.meta, names_key)
    class_names = tuple(map(str, meta[names_key]))
    train, test = (
        _read_images(folder, files, label_key, len(class_names))
        for files in (layout.train, layout.test)
    )
    return DataSet(name, class_names, train, test)


def load_cifar100_small(name: str, data_path: str) -> DataSet:
    """Return 10,000 + 2,000 images, all drawn from CIFAR-100's training images.

    They are the same in every run. What is tuned on them has not seen the test set.
    """
    whole = load_cifar("cifar100", data_path)
    images, wanted = whole.train, sum(_SMALL)
    assert isinstance(images, ArrayImages)
    if len(images) < wanted:
        raise ValueError(
            f"data-path must hold {wanted:,} training images of CIFAR-100 or more for "
            f"dataset = {name!r}, got {len(images):,}."
        )
    drawn = np.random.default_rng(_SMALL_SEED).permutation(len(images))[:wanted]
    train, held_out = (images.subset(np.sort(r)) for r in np.split(drawn, _SMALL[:1]))
    return DataSet(name, whole.class_names, train, held_out)


def _download(name: str, layout: _Layout, root: Path) -> None:
    """Let torchvision download and unpack the files below root."""
    missing = ", ".join(layout.missing(root))
    from torchvision import datasets

    source = getattr(datasets, name.upper())
    try:
        source(str(root), download=True)
    except (OSError, RuntimeError, EOFError) as error:  # URLError is an OSError
        raise FileNotFoundError(
            f"data-path must hold the files of {name}, got {root} without {missing} "
            f"in {layout.folder}, and the download failed ({error}). "
            f"Unpack {source.filename} from {source.url} there."
        ) from error


def _read_images(
    folder: Path, files: Sequence[str], label_key: str, num_classes: int
) -> ArrayImages:
    """Return the images of some batch files, one after the other."""
    pixels, labels = [], []
    for file in files:
        batch = _read_pickle(folder / file, "data", label_key)
        data, classes = np.asarray(batch["data"]), np.asarray(batch[label_key])
        if data.dtype != np.uint8 or data.shape != (len(classes), 3 * 32 * 32):
            raise ValueError(
                f"{folder / file} must hold uint8 data of shape "
                f"({len(classes)}, 3072), got {data.dtype} of shape {data.shape}."
            )
        if not np.isin(classes, np.arange(num_classes)).all():
            raise ValueError(
                f"{folder / file} must have {label_key} from 0 to {num_classes - 1}, "
                f"got {classes.min()} to {classes.max()}."
            )
        pixels.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(classes)
    return ArrayImages(np.concatenate(pixels), np.concatenate(labels))


def _read_pickle(path: Path, *keys: str) -> dict[str, Any]:
    """Return the dictionary in a CIFAR file, which must have these keys."""
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"{path} must be a file of the CIFAR archive for Python, got: {error}. "
            "Remove it to have it downloaded again."
        ) from error
    found = content if isinstance(content, dict) else {}
    absent = [key for key in keys if key not in found]
    if absent:
        raise ValueError(
            f"{path} must have the keys {', '.join(keys)}; {', '.join(absent)} "
            "not found. Is it a file of another data set?"
        )
    return found


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that makes NumPy arrays and plain values, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed global; the files still use NumPy's old module name."""
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
