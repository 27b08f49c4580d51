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
    """The labels of every client's images, and how many images are held out.

    Where only sizes are known, ``num_classes`` is 0; the title says how it was split.
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
    sizes, num_test = federation.sizes, federation.num_test
    empty = int((sizes == 0).sum())
    without = f", {empty:,} of them without images" if empty else ""
    held_out = "" if num_test is None else f", and {num_test:,} held out"
    lines = [
        ("clients", f"{len(sizes):,}{without}"),
        ("images", f"{sizes.sum():,}{held_out}"),
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

    The file has the columns client, num_images; the arguments are as in the run
    config. A partition of None takes the natural clients where there are some, and one
    class per client elsewhere; clients of None are the natural ones, or as many as
    there are classes.
    """
    if name.endswith(".csv"):
        if partition or num_clients:
            raise ValueError(
                f"{name} has clients of its own: there is nothing to split."
            )
        path = Path(name).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                "NAME must be a data set or an existing CSV of client sizes, "
                f"got {name!r}."
            )
        sizes = read_client_sizes(path).values()
        return Federation(path.name, 0, [np.zeros(size, np.int64) for size in sizes])
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


def _spread(numbers: NDArray[np.int64]) -> str:
    """Return mean, median and range of some numbers."""
    return (
        f"mean {numbers.mean():.1f}, median {np.median(numbers):g}, "
        f"{numbers.min():,} to {numbers.max():,}"
    )
