"""A node's own images: folders of classes, two parts, or a table."""

from pathlib import Path
from typing import Any

import pytest

from fed3r_app.data import load_local
from tests.harness.pixels import write_image


@pytest.fixture
def add(tmp_path: Path) -> Any:
    """Put a tiny image under each of some paths; return the folder."""

    def make(*paths: Any) -> Any:
        for number, path in enumerate(paths):
            write_image(tmp_path / path, number)
        return tmp_path

    return make


def named(data: Any, images: Any) -> Any:
    """Return (class, first colour value) of each image."""
    return [
        (data.class_names[label], images.image(i).getpixel((0, 0))[0])
        for i, label in enumerate(images.labels)
    ]


def test_folders_are_classes(add: Any) -> None:
    data = load_local(str(add("owl/2.png", "cat/1.png", "cat/deep/er.png")))
    assert data.class_names == ("cat", "owl")
    assert named(data, data.train) == [("cat", 1), ("cat", 2), ("owl", 0)]
    assert data.test is None


def test_test_images_may_be_of_classes_that_are_not_trained_on_here(add: Any) -> None:
    data = load_local(str(add("train/cat/1.png", "test/owl/2.png", "test/cat/3.png")))
    assert data.class_names == ("cat", "owl")
    assert named(data, data.train) == [("cat", 0)]
    assert named(data, data.test) == [("cat", 2), ("owl", 1)]


def test_a_class_may_be_called_train(add: Any) -> None:
    data = load_local(str(add("train/1.png", "plane/2.png")))
    assert data.class_names == ("plane", "train")


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_table_names_images_anywhere_below_it(add: Any, as_folder: Any) -> None:
    folder = add("a/1.png", "b/2.png", "c 3.png")
    (folder / "labels.csv").write_text(
        "path,label,split\na/1.png,owl,train\nb/2.png,cat,\nc 3.png,owl,test\n"
    )
    data = load_local(str(folder if as_folder else folder / "labels.csv"))
    assert named(data, data.train) == [("cat", 1), ("owl", 0)]
    assert named(data, data.test) == [("owl", 2)]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("file,label\na/1.png,owl\n", "must have the columns path, label"),
        ("", "must have the columns path, label"),
        ("path,label\na/1.png,\n", "line 2 must be a path, a label"),
        ("path,label,split\na/1.png,owl,val\n", "line 2 must be a path, a label"),
        ("path,label\n", "must hold images"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(
    add: Any, table: Any, sentence: str
) -> None:
    folder = add("a/1.png")
    (folder / "labels.csv").write_text(table)
    with pytest.raises((OSError, ValueError), match=sentence):
        load_local(str(folder))


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (("cat.txt/1.txt.png/x.png", "train/cat/1.png"), "got both in"),
        (("test/cat/1.png",), "must hold train/<class>"),
        (("1.png",), "must hold images as <class>"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(
    add: Any, paths: Any, sentence: str
) -> None:
    folder = add(*paths)
    with pytest.raises((OSError, ValueError), match=sentence):
        load_local(str(folder))
    with pytest.raises(FileNotFoundError, match=r"got '.*nowhere', which is not there"):
        load_local(str(folder / "nowhere"))
