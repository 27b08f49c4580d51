"""The published federations on small files made here."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fed3r_app.data import load_dataset, split_rows
from tests.harness.pixels import write_image

LANDMARKS = "landmarks-users-160k"
TRAIN = "federated_train.csv"
INATURALIST = "inaturalist-users-120k"
INAT_TRAIN = "federated_train_user_120k.csv"
INAT_FILES = {
    "ann": "train_val_images/Aves/Pica pica/ann.jpg",
    "bob": "train_val_images/Aves/Pica pica/bob.jpg",
    "cat": "train_val_images/Fungi/Boletus edulis/cat.jpg",
}


def write_annotations(path: Path, start: Any, stems: Any) -> None:
    images = [
        {"id": start + place, "file_name": INAT_FILES[stem]}
        for place, stem in enumerate(stems)
    ]
    path.write_text(json.dumps({"images": images, "annotations": []}))


@pytest.fixture
def landmarks(tmp_path: Path) -> Path:
    (tmp_path / TRAIN).write_text(
        "user_id,image_id,class\n10,abc1,1\n9,abd2,0\n10,fff3,2\n10,abc4,0\n"
    )
    (tmp_path / "test.csv").write_text("image_id,class\neee5,2\n")
    for value, key in enumerate(["abc1", "abd2", "fff3", "abc4", "eee5"]):
        write_image(tmp_path / "train" / key[0] / key[1] / key[2] / f"{key}.jpg", value)
    return tmp_path


@pytest.fixture
def inaturalist(tmp_path: Path) -> Path:
    (tmp_path / INAT_TRAIN).write_text(
        'user_id,image_id,class,label\n"zoe, b.",ann,1,4001\nadam,cat,0,17\n'
    )
    (tmp_path / "test.csv").write_text("image_id,class,label\nbob,1,4001\n")
    write_annotations(tmp_path / "train2017.json", 0, ["ann", "cat"])
    write_annotations(tmp_path / "val2017.json", 2, ["bob"])
    for value, path in enumerate(INAT_FILES.values()):
        write_image(tmp_path / path, value)
    return tmp_path


def load(root: Path) -> Any:
    """Return the federation in a folder."""
    name = INATURALIST if (root / INAT_TRAIN).exists() else LANDMARKS
    return load_dataset(name, str(root))


def value_of(images: Any, row: Any) -> int:
    return int(np.asarray(images.image(row)).max())


def test_landmarks_are_found_by_their_image_id(landmarks: Path) -> None:
    dataset = load(landmarks)
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.train.labels.tolist() == [1, 0, 2, 0]
    assert [value_of(dataset.train, row) for row in range(4)] == [0, 1, 2, 3]
    assert dataset.test.labels.tolist() == [2]
    assert value_of(dataset.test, 0) == 4
    assert len(dataset.train.identity) == 32
    # Users are the natural clients, sorted by name.
    assert dataset.client_names == ("10", "9")
    parts = split_rows(dataset, "natural", 2, 0, 0)
    assert [part.tolist() for part in parts] == [[0, 2, 3], [1]]
    assert all(part.dtype == np.int64 and not part.flags.writeable for part in parts)


def test_inaturalist_is_found_by_file_name(inaturalist: Path) -> None:
    dataset = load(inaturalist)
    assert dataset.class_names == ("17", "4001")
    assert dataset.client_names == ("adam", "zoe, b.")
    assert [part.tolist() for part in dataset.clients] == [[1], [0]]
    assert [value_of(dataset.train, row) for row in range(2)] == [0, 2]
    assert value_of(dataset.test, 0) == 1


def test_inaturalist_is_found_by_number(inaturalist: Path) -> None:
    (inaturalist / "test.csv").write_text("image_id,class\n2,1\n0,0\n")
    dataset = load(inaturalist)
    assert [value_of(dataset.test, row) for row in range(2)] == [1, 0]


@pytest.mark.parametrize("size", ["100", "300", "1k"])
def test_places_are_clients_too_and_archives_may_stay_folders(
    inaturalist: Path, size: Any
) -> None:
    folder = inaturalist / "inaturalist-geo"
    folder.mkdir()
    (inaturalist / INAT_TRAIN).rename(folder / f"federated_train_geo_{size}.csv")
    (folder / "test.csv").write_text("image_id,class,label\ncat,0,17\n")
    dataset = load_dataset(f"inaturalist-geo-{size}", str(inaturalist))
    assert dataset.clients is not None and len(dataset.clients) == 2
    assert value_of(dataset.test, 0) == 2


def test_rows_without_a_user_are_left_out_and_counted(
    landmarks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (landmarks / TRAIN).open("a") as file:
        file.write("NA,abc1,1\n,abc1,1\n")
    with caplog.at_level(logging.WARNING):
        dataset = load(landmarks)
    assert len(dataset.train) == 4
    assert "federated_train.csv: left out 2 rows that have no user_id" in caplog.text


def test_classes_with_gaps_are_ranked(landmarks: Path) -> None:
    (landmarks / "test.csv").write_text("image_id,class\neee5,500\n\n")
    dataset = load(landmarks)
    assert dataset.class_names == ("0", "1", "2", "500")
    assert dataset.test.labels.tolist() == [3]


def test_missing_images_are_reported_by_the_set_that_lacks_them(
    landmarks: Path,
) -> None:
    (landmarks / "train" / "f" / "f" / "f" / "fff3.jpg").unlink()
    dataset = load(landmarks)
    assert dataset.test.identity
    with pytest.raises(
        FileNotFoundError, match=r"without some of them; .* train/f/f/f/fff3\.jpg"
    ):
        _ = dataset.train.identity


@pytest.mark.parametrize("file", [TRAIN, "test.csv"])
def test_a_missing_split_file_is_named(landmarks: Path, file: Any) -> None:
    (landmarks / file).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"must hold {file} .* Unpack landmarks-user-160k\.zip"
    ):
        load(landmarks)


HEADER = "user_id,image_id,class\n"


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (TRAIN, "", r"columns user_id, image_id, class in line 1, got nothing"),
        (TRAIN, "user_id,image_id\n1,abc\n", r"got user_id, image_id\."),
        (TRAIN, HEADER, "at least one image, got none"),
        (TRAIN, HEADER + "1,abc,0\n1,abc\n", "line 3 must have 3 columns, got 2"),
        (TRAIN, HEADER + "1,abc,cat\n", "line 2: class must be .* got 'cat'"),
        (TRAIN, HEADER + "1,abc,-1\n", "line 2: class must be .* got '-1'"),
        (TRAIN, HEADER + "1,abc,1.5\n", "line 2: class must be .* got '1.5'"),
        ("test.csv", "image_id,class\n\xff\xfe,1\n", "must be CSV in UTF-8"),
    ],
)
def test_a_malformed_split_file_is_named_with_the_line(
    landmarks: Path, file: str, content: str, sentence: str
) -> None:
    (landmarks / file).write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=rf"{re.escape(file)}.* {sentence}"):
        load(landmarks)


def test_an_image_id_cannot_lead_out_of_the_folder(landmarks: Path) -> None:
    (landmarks / "test.csv").write_text("image_id,class\n../../secret,1\n")
    with pytest.raises(ValueError, match=r"image_id .* got '\.\./\.\./secret'"):
        load(landmarks)


def test_one_annotation_file_is_enough_if_it_lists_all(inaturalist: Path) -> None:
    write_annotations(inaturalist / "train2017.json", 0, ["ann", "cat", "bob"])
    (inaturalist / "val2017.json").write_text("never read")
    test = load(inaturalist).test
    assert test is not None and len(test) == 1


def test_an_annotation_file_that_is_not_there_is_named(inaturalist: Path) -> None:
    (inaturalist / "val2017.json").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"got 1 that train2017\.json .* lack; the first is 'bob'\. val2017\.json",
    ):
        load(inaturalist)
    (inaturalist / "train2017.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"must hold train2017\.json or val2017\.json"
    ):
        load(inaturalist)


@pytest.mark.parametrize("content", ["{", "[]", '{"images": [{"id": 1}]}', "{}"])
def test_a_malformed_annotation_file_is_named(inaturalist: Path, content: Any) -> None:
    (inaturalist / "train2017.json").write_text(content)
    with pytest.raises(ValueError, match=r"train2017\.json must be an annotation file"):
        load(inaturalist)
