"""Synthetic data sets: features of any row, at any time, always the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.data import load_dataset, split_rows
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import cached_features, extract_features
from fed3r_app.features.spec import BackboneSpec

NAME = "synthetic:clients=30,classes=5,features=16,mean=8"


@pytest.fixture
def sizes_csv(tmp_path: Path) -> Any:
    path = tmp_path / "sizes.csv"
    path.write_text("client,num_images\nann,3\ntest,50\nbob,0\ncem,40\n")
    return path


def test_every_row_is_the_same_whoever_asks_and_with_whom() -> None:
    train: Any = load_dataset(NAME, "").train
    rows = np.arange(len(train))
    together = train.features(rows)
    assert together.dtype == np.float32
    for row in (0, 7, len(train) - 1):
        assert np.array_equal(train.features(np.array([row]))[0], together[row])
    backwards = train.features(rows[::-1])
    assert np.array_equal(backwards[::-1], together)


def test_rows_differ_and_so_do_training_test_and_seeds() -> None:
    rows = np.arange(20)
    dataset: Any = load_dataset(NAME, "")
    other: Any = load_dataset(NAME + ",seed=1", "")
    noise = [
        part.features(rows) - part._centres[part.labels[rows]]
        for part in (dataset.train, dataset.test, other.train, other.test)
    ]
    drawn = np.concatenate(noise)
    assert len(np.unique(drawn.round(4), axis=0)) == len(drawn)


def test_features_lie_around_the_centres_that_training_and_test_share() -> None:
    dataset = load_dataset("synthetic:classes=3,features=4,clients=50,mean=100", "")

    def centre(part: Any, label: Any) -> Any:
        return part.features(np.flatnonzero(part.labels == label)).mean(axis=0)

    # The noise is 0.2 sqrt(4) = 0.4; means of hundreds of samples.
    for label in range(3):
        means = centre(dataset.train, label), centre(dataset.test, label)
        assert np.allclose(*means, atol=0.15)


def test_the_natural_clients_are_those_of_the_file(sizes_csv: Any) -> None:
    dataset = load_dataset("synthetic:classes=4,features=3", str(sizes_csv))
    split = split_rows(dataset, "natural", 3, 0, 0)
    assert [len(rows) for rows in split] == [3, 0, 40]
    assert dataset.client_names == ("ann", "bob", "cem")
    assert np.array_equal(np.concatenate(split), np.arange(43))


def test_a_client_has_fewer_classes_than_images_drawn_one_by_one() -> None:
    dataset = load_dataset("synthetic:clients=2000,classes=1000,mean=13", "")
    labels = dataset.train.labels
    pairs = sum(len(np.unique(labels[rows])) for rows in dataset.clients or ())
    # A run of one class has mean length 1 / 0.43; each client begins one.
    begun = 2000 + 0.43 * (len(labels) - 2000)
    assert pairs == pytest.approx(begun, rel=0.03)


def test_the_identity_names_the_data_exactly(sizes_csv: Any) -> None:
    names = (NAME, NAME + ",seed=1", NAME.replace("16", "17"))
    sets: list[Any] = [load_dataset(name, "") for name in names]
    identities = {dataset.train.identity for dataset in sets} | {sets[0].test.identity}
    identities.add(load_dataset("synthetic:classes=4", str(sizes_csv)).train.identity)
    assert len(identities) == 5


def test_its_features_are_taken_as_they_are(tmp_path: Path) -> None:
    dataset, rows = load_dataset(NAME, ""), np.array([4, 2])
    train: Any = dataset.train
    backbone = load_backbone(BackboneSpec("none", "packaged", 96), dataset.feature_dim)
    assert backbone.dim == 16
    expected, cpu = torch.from_numpy(train.features(rows)), torch.device("cpu")
    plain = extract_features(backbone, train, rows, device=cpu)
    kept = cached_features(backbone, train, rows, tmp_path, device=cpu)
    assert torch.equal(plain, expected) and torch.equal(kept, expected)
    assert not list(tmp_path.iterdir())


def test_there_are_no_images() -> None:
    with pytest.raises(ValueError, match="has features and no image"):
        load_dataset(NAME, "").train.image(0)
    with pytest.raises(ValueError, match='"none" must go with samples that are feat'):
        load_backbone(BackboneSpec("none", "packaged", 96))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("synthetic:class=3", "must be synthetic:key=value.*classes=10.*got 'class=3'"),
        ("synthetic:classes", "got 'classes'"),
        ("synthetic:classes=two", "got 'classes=two'"),
        ("synthetic:classes=0", "got 'classes=0'"),
        ("synthetic:mean=nan", "got 'mean=nan'"),
        ("synthetic:seed=-1", "got 'seed=-1'"),
        ("synthetics", "dataset must be one of .*synthetic, got 'synthetics'"),
        ("digits:classes=3", "dataset must be one of .* got 'digits:classes=3'"),
    ],
)
def test_a_bad_name_is_one_clear_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_dataset(name, "")


def test_a_file_and_numbers_that_contradict_it_are_refused(sizes_csv: Any) -> None:
    with pytest.raises(ValueError, match="must not set clients when data-path"):
        load_dataset("synthetic:clients=3", str(sizes_csv))
    with pytest.raises(FileNotFoundError, match="data-path must be a CSV of client"):
        load_dataset("synthetic", "no/such.csv")
