"""Images for the benchmarks, as a data set that the app can load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fed3r_app.data import DataSet, load_dataset
from simulation.bench.material import IMAGES
from simulation.bench.results import Options

_TRAIN, _TEST = 2000, 200
_QUICK = 60


def make_image_folder(folder: Path, options: Options) -> Path:
    """Return a folder with train and test images, real ones where there are any."""
    arrays = _read_arrays(options.data)
    for part, limit in (("train", _TRAIN), ("test", _TEST)):
        pixels, labels = arrays[part]
        number = min(_QUICK if options.quick else limit, len(pixels))
        for row in range(number):
            path = folder / part / f"{labels[row]:03d}" / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(path)
    for kept in {path.name for path in (folder / "test").iterdir()}:
        (folder / "train" / kept).mkdir(exist_ok=True)
    return folder


def load_images(folder: Path) -> DataSet:
    """Return the data set in a folder."""
    return load_dataset("imagefolder", str(folder))


def _read_arrays(
    data: Path | None,
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    path = data / IMAGES if data else None
    if path is None or not path.exists():
        return {part: _digits(part) for part in ("train", "test")}
    with np.load(path) as arrays:
        return {
            part: (arrays[f"x_{part}"], arrays[f"y_{part}"].astype(np.int64))
            for part in ("train", "test")
        }


def _digits(part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    dataset = load_dataset("digits", "")
    images = dataset.train if part == "train" else dataset.test
    assert images is not None
    pixels = [np.asarray(images.image(row)) for row in range(len(images))]
    return np.stack(pixels), images.labels
