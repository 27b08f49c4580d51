"""A partition in numbers: sizes of the clients, and who has which class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data import load_dataset, split_rows
from fed3r_app.data.client_sizes import read_client_sizes
from fed3r_app.data.published import FEDERATION_NAMES, load_published_labels


@dataclass(frozen=True, eq=False)
class Federation:
    """The labels of every client.

    Parameters
    ----------
    title : str
        What it is, and how it was split.
    num_classes : int
        C; 0 where only sizes are known.
    labels : sequence of K arrays
        Labels of each client's images.
    num_test : int or None
        Held-out images, where that is known.
    """

    title: str
    num_classes: int
    labels: Sequence[NDArray[np.int64]]
    num_test: int | None = None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of images of each client (K,)."""
        return np.array([len(labels) for labels in self.labels], dtype=np.int64)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Number of classes of each client (K,)."""
        return np.array([len(np.unique(labels)) for labels in self.labels])

    def label_counts(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many images of each class some clients have, (len, C)."""
        return np.stack(
            [np.bincount(self.labels[k], minlength=self.num_classes) for k in clients]
        )


def describe(federation: Federation) -> str:
    """Return the numbers of a federation, a line each."""
    sizes = federation.sizes
    lines = [
        ("clients", f"{len(sizes):,}" + _empty(sizes)),
        ("images", f"{sizes.sum():,}" + _held_out(federation.num_test)),
        ("images per client", _spread(sizes)),
    ]
    if federation.num_classes:
        classes = federation.class_counts
        lines += [
            ("classes", f"{federation.num_classes:,}"),
            ("classes per client", _spread(classes)),
            ("(client, class) pairs", f"{classes.sum():,}"),
        ]
    else:
        lines.append(("classes", "not known: the file has sizes only"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(
        [federation.title, *(f"  {name:{width}}  {text}" for name, text in lines)]
    )


def load_federation(
    name: str,
    data_path: str = "",
    partition: str | None = None,
    alpha: float = 0.1,
    num_clients: int | None = None,
    seed: int = 0,
) -> Federation:
    """Return a federation by the name of its data set, or of a CSV of client sizes.

    Parameters
    ----------
    name : str
        `dataset` of the run config, or a file with the columns client, num_images.
    data_path, alpha, seed
        As in the run config.
    partition : str or None
        As in the run config; None takes the natural clients where there are some, and
        one class per client elsewhere.
    num_clients : int or None
        None takes the natural clients, or as many as there are classes.
    """
    if name.endswith(".csv"):
        if partition or num_clients:
            raise ValueError(
                f"{name} has clients of its own: there is nothing to split."
            )
        sizes = read_client_sizes(_existing_file(name)).values()
        empty = [np.zeros(size, dtype=np.int64) for size in sizes]
        return Federation(Path(name).name, 0, empty)
    # Of the published ones the split files are enough.
    load = load_published_labels if name in FEDERATION_NAMES else load_dataset
    dataset = load(name, data_path)
    natural = dataset.clients
    partition = partition or ("by-class" if natural is None else "natural")
    if num_clients is None:
        known = natural if partition == "natural" else None
        num_clients = len(known if known is not None else dataset.class_names)
    rows = split_rows(dataset, partition, num_clients, alpha, seed)
    how = f"{partition}, alpha = {alpha:g}" if partition == "dirichlet" else partition
    return Federation(
        f"{name}, {how}",
        len(dataset.class_names),
        [dataset.train.labels[part] for part in rows],
        None if dataset.test is None else len(dataset.test),
    )


def _existing_file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"NAME must be a data set or an existing CSV of client sizes, got {name!r}."
        )
    return path


def _spread(numbers: NDArray[np.int64]) -> str:
    """Return mean, median and range of some numbers."""
    return (
        f"mean {numbers.mean():.1f}, median {np.median(numbers):g}, "
        f"{numbers.min():,} to {numbers.max():,}"
    )


def _empty(sizes: NDArray[np.int64]) -> str:
    number = int((sizes == 0).sum())
    return f", {number:,} of them without images" if number else ""


def _held_out(number: int | None) -> str:
    return "" if number is None else f", and {number:,} held out"
