"""Laws of every split, then what is special to each scheme."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.data import DataSet, split_rows
from fed3r_app.data.images import ArrayImages

DRAWN = ("iid", "dirichlet", "by-class")


def make_dataset(labels: Any, clients: Any = None) -> Any:
    pixels = np.zeros((len(labels), 1, 1, 3), dtype=np.uint8)
    return DataSet(
        name="toy",
        class_names=tuple("abcdefghij"),
        train=ArrayImages(pixels, labels),
        test=None,
        clients=clients,
        client_names=None if clients is None else tuple(map(str, range(len(clients)))),
    )


def draw_labels(num_rows: Any, num_classes: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(num_classes, size=num_rows)


def same_split(left: Any, right: Any) -> Any:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@settings(max_examples=60)
@given(
    scheme=st.sampled_from(DRAWN),
    num_rows=st.integers(30, 200),
    num_classes=st.integers(1, 10),
    num_clients=st.integers(1, 30),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
)
def test_every_row_has_exactly_one_client(
    scheme: str,
    num_rows: int,
    num_classes: int,
    num_clients: int,
    alpha: Any,
    seed: int,
) -> None:
    dataset = make_dataset(draw_labels(num_rows, num_classes, seed))
    parts = split_rows(dataset, scheme, num_clients, alpha, seed)
    assert len(parts) == num_clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_rows))
    for part in parts:
        assert part.dtype == np.int64
        assert np.array_equal(part, np.sort(part))
        assert not part.flags.writeable


@pytest.mark.parametrize("scheme", DRAWN)
def test_a_seed_means_a_split_that_is_worked_out_once(scheme: Any) -> None:
    labels = draw_labels(200, 10, seed=0)
    dataset = make_dataset(labels)
    first = split_rows(dataset, scheme, 20, 0.5, 3)
    assert split_rows(dataset, scheme, num_clients=20, alpha=0.5, seed=3) is first
    assert same_split(first, split_rows(make_dataset(labels), scheme, 20, 0.5, 3))
    assert not same_split(first, split_rows(dataset, scheme, 20, 0.5, 2))


def test_iid_parts_differ_in_size_by_at_most_one() -> None:
    sizes = [len(p) for p in split_rows(make_dataset([0] * 47), "iid", 10, 0, 0)]
    assert sorted(sizes) == [4] * 3 + [5] * 7


@pytest.mark.parametrize("scheme", ["iid", "by-class"])
def test_more_clients_than_rows_leaves_some_empty(scheme: Any) -> None:
    parts = split_rows(make_dataset([0, 1, 2]), scheme, 8, 0, 0)
    assert sorted(map(len, parts)) == [0] * 5 + [1] * 3


@settings(max_examples=60)
@given(num_clients=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_by_class_deals_whole_classes_or_gives_a_client_one(
    num_clients: int, seed: int
) -> None:
    labels = np.concatenate([np.arange(10), draw_labels(190, 10, seed)])
    parts = split_rows(make_dataset(labels), "by-class", num_clients, 0, seed)
    counts = [len(np.unique(labels[part])) for part in parts]
    if num_clients >= 10:
        assert max(counts) <= 1
    else:
        assert sum(counts) == 10
        assert max(counts) - min(counts) <= 1


def test_by_class_shares_a_class_evenly_over_its_clients() -> None:
    labels = np.repeat(np.arange(10), 25)
    parts = split_rows(make_dataset(labels), "by-class", 100, 0, 0)
    assert {len(part) for part in parts} == {2, 3}


def test_by_class_skips_a_class_that_no_row_has() -> None:
    labels = np.array([0, 0, 7, 7])
    parts = split_rows(make_dataset(labels), "by-class", 2, 0, 0)
    assert sorted(labels[part].tolist() for part in parts) == [[0, 0], [7, 7]]


def test_natural_gives_the_clients_of_the_data_set() -> None:
    clients = (np.array([0, 3]), np.array([1]), np.array([2]))
    dataset = make_dataset([0, 1, 0, 1], clients)
    assert split_rows(dataset, "natural", 3, 0, 0) is clients


def test_an_alpha_of_zero_means_one_class_per_client() -> None:
    labels = np.repeat(np.arange(10), 20)
    dataset = make_dataset(labels)
    split = split_rows(dataset, "dirichlet", 10, 0, 3)
    assert {len(np.unique(labels[part])) for part in split} == {1}
    assert split is split_rows(dataset, "by-class", 10, 0.1, 3)


def test_cifar_100_at_the_papers_alphas() -> None:
    # 100 classes of 50 in place of 500 images, 100 clients.
    labels = np.repeat(np.arange(100), 50)
    dataset = make_dataset(labels)
    classes = []
    for alpha in (0, 0.05, 0.1, 0.5, 1, 10, 1000):
        split = split_rows(dataset, "dirichlet", 100, alpha, 0)
        assert sum(map(len, split)) == len(labels)
        classes.append(np.mean([len(np.unique(labels[part])) for part in split]))
    assert classes[0] == 1
    assert classes == sorted(classes)
    assert classes[-1] > 40  # of 50 images


BAD_ALPHA = "alpha must be >= 0 and finite"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scheme": "random"}, "partition must be one of iid, .* got 'random'"),
        ({"num_clients": 0}, "number of clients must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"scheme": "dirichlet", "alpha": -1.0}, BAD_ALPHA),
        ({"scheme": "dirichlet", "alpha": float("nan")}, BAD_ALPHA),
        ({"scheme": "dirichlet", "alpha": float("inf")}, BAD_ALPHA),
        ({"scheme": "dirichlet", "alpha": 1.7e308}, BAD_ALPHA),
        ({"scheme": "dirichlet", "num_clients": 4}, "must be <= 3, .* got 4"),
        ({"scheme": "natural"}, "partition must be .* no natural clients"),
    ],
)
def test_a_bad_setting_is_named(change: Any, sentence: str) -> None:
    settings = {"scheme": "iid", "num_clients": 2, "alpha": 1.0, "seed": 0} | change
    with pytest.raises(ValueError, match=sentence):
        split_rows(make_dataset([0, 1, 2]), **settings)


def test_natural_wants_as_many_nodes_as_there_are_clients() -> None:
    dataset = make_dataset([0, 1], (np.array([0]), np.array([1])))
    with pytest.raises(
        ValueError,
        match=r"must be 2, that of the natural clients of toy, got 10\. "
        r"Give --clients 2, or num-supernodes=2 to flwr run\.",
    ):
        split_rows(dataset, "natural", 10, 0, 0)
