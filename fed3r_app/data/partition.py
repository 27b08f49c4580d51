"""Who gets which rows: splits of the training rows over simulated clients."""

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.images import DataSet

Rows = tuple[NDArray[np.int64], ...]
# How a data set is split that comes without clients of its own.
WITHOUT_CLIENTS = ("iid", "dirichlet", "by-class")
SCHEMES = (*WITHOUT_CLIENTS, "natural")


def split_rows(
    dataset: DataSet, scheme: str, num_clients: int, alpha: float, seed: int
) -> Rows:
    """Return the sorted training rows of each client; every row has one client.

    Rows that are held out have none. Clients may be empty. The result is kept for the
    next call with the same arguments, and its arrays are read-only.

    Parameters
    ----------
    dataset : DataSet
    scheme : str
        `partition` of the run config. "iid": a random split into equal parts
        (sizes differ by at most one). "dirichlet": each class is shared out in
        proportions drawn from Dirichlet(alpha). "by-class": one class per client,
        which is what alpha = 0 means; with fewer clients than classes, whole classes
        are dealt over them. "natural": as the data set comes.
    num_clients : int
        Number K of clients.
    alpha : float
        Concentration, alpha >= 0; only "dirichlet" reads it.
    seed : int
        Seed of the draw; "natural" does not draw.

    Returns
    -------
    tuple of K arrays of int64
    """
    check_split(dataset, scheme, num_clients, alpha)
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}.")
    if scheme == "dirichlet" and alpha == 0:
        scheme = "by-class"
    # Only "dirichlet" depends on alpha: the others share a cache entry.
    return _split_once(
        dataset, scheme, num_clients, alpha if scheme == "dirichlet" else 0.0, seed
    )


def check_split(dataset: DataSet, scheme: str, num_clients: int, alpha: float) -> None:
    """Raise ValueError, with a sentence, where there is no such split."""
    if scheme not in SCHEMES:
        raise ValueError(
            f"partition must be one of {', '.join(SCHEMES)}, got {scheme!r}."
        )
    if num_clients < 1:
        raise ValueError(f"The number of clients must be >= 1, got {num_clients}.")
    if scheme == "natural":
        _check_natural(dataset, num_clients)
    if scheme == "dirichlet":
        _check_dirichlet(len(dataset.train), num_clients, alpha)


def _check_natural(dataset: DataSet, num_clients: int) -> None:
    if dataset.clients is None:
        raise ValueError(
            f"partition must be one of {', '.join(WITHOUT_CLIENTS)} when "
            f"dataset = {dataset.name!r}, which has no natural clients, got 'natural'."
        )
    if num_clients != len(dataset.clients):
        count = len(dataset.clients)
        raise ValueError(
            f"The number of clients must be {count}, that of the natural clients of "
            f"{dataset.name}, got {num_clients}. Give --clients {count}, or "
            f"num-supernodes={count} to flwr run."
        )


def _check_dirichlet(num_images: int, num_clients: int, alpha: float) -> None:
    # The draw sums K gamma(alpha) variables, which must not overflow either.
    if not (alpha >= 0 and math.isfinite(alpha * num_clients)):
        raise ValueError(
            f"alpha must be >= 0 and finite, got {alpha!r}. With 0 every client has "
            "one class."
        )
    if alpha and num_clients > num_images:
        raise ValueError(
            f"The number of clients must be <= {num_images}, the number of training "
            f'images, when partition = "dirichlet", got {num_clients}.'
        )


# A DataSet is hashed by identity, so looking up a split costs next to nothing.
@lru_cache(maxsize=16)
def _split_once(
    dataset: DataSet, scheme: str, num_clients: int, alpha: float, seed: int
) -> Rows:
    labels = dataset.train.labels
    if scheme == "natural":
        assert dataset.clients is not None  # checked
        return dataset.clients
    parts: Iterable[NDArray[np.int64]]
    if scheme == "dirichlet":
        parts = _dirichlet(labels, num_clients, alpha, seed)
    elif scheme == "by-class":
        parts = _by_class(labels, num_clients, seed)
    else:
        rows = np.random.default_rng(seed).permutation(len(labels))
        parts = np.array_split(rows, num_clients)  # iid
    if dataset.held_out is not None:
        parts = [part[~dataset.held_out[part]] for part in parts]
    return _sorted_rows(parts)


def _sorted_rows(parts: Iterable[NDArray[np.int64]]) -> Rows:
    """Return each part sorted and read-only."""
    rows = tuple(np.sort(part) for part in parts)
    for part in rows:
        part.setflags(write=False)
    return rows


def _dirichlet(
    labels: NDArray[np.int64], num_clients: int, alpha: float, seed: int
) -> list[NDArray[np.int64]]:
    """Return the parts that Flower Datasets' Dirichlet partitioner makes."""
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=num_clients,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=0,
        shuffle=False,
        seed=seed,
    )
    partitioner.dataset = Dataset.from_dict(
        {"label": labels, "row": np.arange(len(labels))}
    )
    # [:] reads a part at once; its column alone would be read row by row.
    return [
        np.array(partitioner.load_partition(client)[:]["row"], dtype=np.int64)
        for client in range(num_clients)
    ]


def _by_class(
    labels: NDArray[np.int64], num_clients: int, seed: int
) -> list[NDArray[np.int64]]:
    """Return parts of one class each, or of whole classes where clients are few."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels))
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for place, label in enumerate(classes):
        # K >= C: clients place, place + C, place + 2C … share the class.
        # K < C: the step C leads past K at once, and one client has it all.
        owners = range(place % num_clients, num_clients, len(classes))
        rows = rng.permutation(np.flatnonzero(labels == label))
        for owner, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
            parts[owner].append(part)
    empty = np.empty(0, dtype=np.int64)
    return [np.concatenate([empty, *part]) for part in parts]
