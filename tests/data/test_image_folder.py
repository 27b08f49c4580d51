"""The data set `imagefolder` on small trees of files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fed3r_app.data import load_dataset
from fed3r_app.data.image_folder import list_images
from tests.harness.pixels import write_image


@pytest.fixture
def root(tmp_path: Path) -> Any:
    write_image(tmp_path / "train" / "dog" / "2.png", 12)
    write_image(tmp_path / "train" / "dog" / "1.png", 11)
    write_image(tmp_path / "train" / "cat" / "deep" / "er" / "9.JPG", 10)
    return tmp_path


def test_classes_are_the_sorted_folders_of_train(root: Any) -> None:
    dataset = load_dataset("imagefolder", str(root))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, 1]
    values = [np.asarray(dataset.train.image(row)).max() for row in range(3)]
    assert values == [10, 11, 12]
    assert dataset.test is None
    assert dataset.clients is None


def test_an_empty_class_folder_is_a_class_and_hidden_and_other_files_are_passed_over(
    root: Path,
) -> None:
    (root / "train" / "bird").mkdir()
    (root / "train" / "dog" / "notes.txt").write_text("good dog")
    write_image(root / "train" / "dog" / ".1.png")
    write_image(root / "train" / ".thumbnails" / "1.png")
    write_image(root / "test" / "dog" / "1.png")
    dataset: Any = load_dataset("imagefolder", str(root))
    assert dataset.class_names == ("bird", "cat", "dog")
    assert dataset.train.labels.tolist() == [1, 2, 2]
    assert dataset.test.labels.tolist() == [2]  # by the classes of train


def test_files_with_other_endings_are_counted_in_the_log_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dog, beside = root / "train" / "dog", root / "raw" / "dog"
    beside.mkdir(parents=True)
    for name in ("1.HEIC", "2.heic", "3.txt", "4", ".hidden"):
        (dog / name).touch()
        (beside / name).touch()
    for _ in range(2):
        list_images(str(root))
    said = "4 files are passed over, which are no images by their endings: 2 .heic, "
    assert caplog.text.count(f"{root}: {said}") == 1
    assert "1 .txt, 1 without an ending. Known endings: .jpg .jpeg" in caplog.text


def test_a_folder_that_makes_no_sense_is_refused(root: Any) -> None:
    write_image(root / "test" / "fish" / "1.png")
    with pytest.raises(ValueError, match=r"must also be in train, got fish\."):
        load_dataset("imagefolder", str(root))
    (root / "train").rename(root.parent / "away")
    with pytest.raises(FileNotFoundError, match=r"must hold train/<class>/"):
        load_dataset("imagefolder", str(root))
    with pytest.raises(FileNotFoundError, match=r"got '.*nowhere', which is not there"):
        load_dataset("imagefolder", str(root / "nowhere"))
    with pytest.raises(ValueError, match=r"data-path must name a folder .* got ''"):
        load_dataset("imagefolder", "")
