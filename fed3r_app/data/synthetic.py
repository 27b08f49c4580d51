"""Features drawn around class centres: runs at any scale, without images.

Named `synthetic:classes=1203,features=1280,…` in the run config. Every number of a
sample follows from the data set's name and the sample's row, so that a client makes
just its own features when it is asked, and no process ever holds all of them.
"""

import hashlib
import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.client_sizes import draw_client_sizes, read_client_sizes
from fed3r_app.data.images import DataSet, GivenFeatures

NAME = "synthetic"
# Chance that a client's next image is of the same class as the one before: so many
# (client, class) pairs as iNaturalist-Users-120K has.
_SAME_CLASS = 0.57
# Noise per sqrt(d): two centres are 7 standard deviations apart, whatever d.
_NOISE = 0.2
# Held-out samples: one per class, and no fewer than this.
_TEST = 1000
# Streams of random numbers: what is drawn from the seed for which purpose.
_CENTRES, _LABELS, _TRAIN_NOISE, _TEST_NOISE = range(1, 5)


@dataclass(frozen=True)
class _Recipe:
    """The numbers in the data set's name; a CSV has its own for clients and mean."""

    clients: int = 100  # K natural ones
    classes: int = 10  # C
    features: int = 64  # d
    mean: float = 20.0  # number of images of a client
    seed: int = 0  # of the data, as the run's seed is that of splits and draws


def load_synthetic(name: str, data_path: str) -> DataSet:
    """Return the data set of that name, its client sizes from the CSV data-path."""
    recipe = read_recipe(name)
    if data_path:
        sizes, client_names = _read_sizes(name, data_path)
    else:
        sizes = draw_client_sizes(recipe.clients, recipe.mean, recipe.seed)
        client_names = tuple(map(str, range(recipe.clients)))
    labels = _draw_labels(sizes, recipe.classes, recipe.seed)
    num_test = max(_TEST, recipe.classes)
    test_labels = np.arange(num_test) % recipe.classes
    rows = np.arange(len(labels))
    rows.setflags(write=False)
    return DataSet(
        name=name,
        class_names=tuple(map(str, range(recipe.classes))),
        train=_SyntheticFeatures(labels, recipe, _TRAIN_NOISE),
        test=_SyntheticFeatures(test_labels, recipe, _TEST_NOISE),
        clients=tuple(np.split(rows, np.cumsum(sizes)[:-1])),
        client_names=client_names,
    )


class _SyntheticFeatures(GivenFeatures):
    """Features that are drawn when asked for: a class centre and noise."""

    def __init__(
        self, labels: NDArray[np.int64], recipe: _Recipe, noise_stream: int
    ) -> None:
        super().__init__(labels, recipe.features)
        self._recipe = recipe
        self._stream = noise_stream

    def features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features (m, d) of some rows."""
        noise = np.empty((len(rows), self.dim), dtype=np.float32)
        for place, row in zip(noise, rows, strict=True):
            key = (self._recipe.seed << 64) + (self._stream << 60) + int(row)
            random = np.random.Generator(np.random.Philox(key=key))
            random.standard_normal(dtype=np.float32, out=place)
        noise *= np.float32(_NOISE * math.sqrt(self.dim))
        return np.add(noise, self._centres[self.labels[rows]], out=noise)

    @cached_property
    def _centres(self) -> NDArray[np.float32]:
        """The centres of the classes (C, d)."""
        random = np.random.default_rng([self._recipe.seed, _CENTRES])
        shape = (self._recipe.classes, self._recipe.features)
        return random.standard_normal(shape, dtype=np.float32)

    def _digest(self) -> str:
        about = repr((self._recipe, self._stream, _NOISE))
        digest = hashlib.blake2b(about.encode(), digest_size=16)
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


def read_recipe(name: str) -> _Recipe:
    """Return the recipe in a name such as `synthetic:classes=5`, or raise."""
    values: dict[str, float] = {}
    _, _, settings = name.partition(":")
    defaults = {field.name: field.default for field in fields(_Recipe)}
    for setting in filter(None, settings.split(",")):
        key, _, text = setting.strip().partition("=")
        try:
            values[key] = float(text) if key == "mean" else int(text)
        except ValueError:
            values[key] = math.nan
        least = 0 if key == "seed" else 1
        if key not in defaults or not least <= values[key] < 1e9:  # also refuses NaN
            keys = ", ".join(f"{each}={value}" for each, value in defaults.items())
            raise ValueError(
                f"dataset = {name!r} must be synthetic:key=value,… with some of "
                f"{keys}, got {setting!r}."
            )
    return _Recipe(**values)  # type: ignore[arg-type]


def _read_sizes(name: str, data_path: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the sizes in a CSV and the clients' names."""
    for key in ("clients", "mean"):
        if f"{key}=" in name:
            raise ValueError(
                f"dataset = {name!r} must not set {key} when data-path = "
                f"{data_path!r}: both come from the file."
            )
    path = Path(data_path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"data-path must be a CSV of client sizes, or '', when dataset = {name!r}, "
            f"got {data_path!r}. A relative path starts from {Path.cwd()}."
        )
    sizes = read_client_sizes(path)
    return np.array(list(sizes.values()), dtype=np.int64), tuple(sizes)


def _draw_labels(
    sizes: NDArray[np.int64], num_classes: int, seed: int
) -> NDArray[np.int64]:
    """Return labels (n,), client by client, in runs of one class within a client."""
    random = np.random.default_rng([seed, _LABELS])
    n = int(sizes.sum())
    drawn = random.integers(num_classes, size=n)
    begins_run = random.random(n) >= _SAME_CLASS
    begins_run[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    # Each row takes what was drawn where its run begins.
    first = np.maximum.accumulate(np.where(begins_run, np.arange(n), 0))
    return drawn[first]
