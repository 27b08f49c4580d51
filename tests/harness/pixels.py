"""Images as features that cost nothing: their pixels at 8 x 8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.secagg import FixedPointEncoding

SIZE, LAM = 8, 0.5
PIXELS: dict[str, Any] = {"backbone": "pixels", "image-size": SIZE}
# As exact as can be, so that a tolerance says something.
EXACT = PIXELS | {"ridge-lambda": LAM, "upload-dtype": "float64"}


def pixels(
    rows: Sequence[int] | np.ndarray[Any, Any] | None = None,
    dataset: str = "digits",
    data_path: str = "",
    part: str = "train",
    size: int = SIZE,
) -> tuple[Tensor, Tensor]:
    """Return the features (n, size²) and labels (n,) of images, all where no rows."""
    images = getattr(load_dataset(dataset, data_path), part)
    rows = np.arange(len(images)) if rows is None else np.asarray(rows)
    backbone = load_backbone(BackboneSpec("pixels", "packaged", size))
    Z = extract_features(backbone, images, rows, device=torch.device("cpu"))
    return Z, torch.from_numpy(images.labels[rows])


def pooled(
    dataset: str = "digits",
    data_path: str = "",
    rows: Sequence[int] | np.ndarray[Any, Any] | None = None,
) -> Tensor:
    """Return the ridge classifier of the training images at one place."""
    num_classes = len(load_dataset(dataset, data_path).class_names)
    Z, y = pixels(rows, dataset, data_path)
    return solve_ridge(RidgeStatistics.of(Z, y, num_classes), LAM)


def rounded_statistics(
    clients: Iterable[int],
    num_clients: int,
    feature_map: FeatureMap | None = None,
    max_samples: int = 1_000_000,
) -> RidgeStatistics:
    """Return the plain statistics of some clients' grid-rounded digits.

    Summed client by client in float64, as a plain run would; then scaled.
    """
    feature_map = feature_map or FeatureMap(SIZE * SIZE)
    grid = FixedPointEncoding(feature_map, 1.0, max_samples)
    rows = split_rows(load_dataset("digits", ""), "iid", num_clients, 0.1, 0)
    total = RidgeStatistics.zeros(feature_map.dim, 10)
    for client in clients:
        Z, y = pixels(rows[client])
        total = total + RidgeStatistics.of(grid.round(feature_map(Z)), y, 10)
    return grid.scaled(total)


def assert_same_statistics(one: RidgeStatistics, other: RidgeStatistics) -> None:
    """Compare two statistics bit for bit."""
    assert torch.equal(one.A, other.A)
    assert torch.equal(one.b, other.b)
    assert torch.equal(one.counts, other.counts)


def assert_plain(
    outcome: Any,
    clients: Iterable[int],
    num_clients: int,
    feature_map: FeatureMap | None = None,
) -> None:
    """Compare what a run gave with the plain sum and its solution, bit for bit."""
    stats = rounded_statistics(clients, num_clients, feature_map)
    assert_same_statistics(outcome.statistics, stats)
    assert torch.equal(outcome.weights, solve_ridge(stats, LAM))


def assert_close(W: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert float((W - expected).norm() / expected.norm()) <= tolerance


def write_image(path: Path, value: int = 0) -> None:
    """Save a small image of one colour, with the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (value, value, value)).save(path)


def save_sides(folder: Path, parts: Mapping[str, Mapping[str, int]]) -> Path:
    """Write so many images of each class of a part, bright left or right in turn."""
    rng = np.random.default_rng(0)
    for part, counts in parts.items():
        for label, (name, count) in enumerate(counts.items()):
            path = folder / part / name
            path.mkdir(parents=True)
            bright = slice(4 * (label % 2), 4 * (label % 2) + 4)
            for i in range(count):
                grey = rng.uniform(0, 100, size=(SIZE, SIZE))
                grey[:, bright] += 100
                Image.fromarray(grey.astype(np.uint8)).save(path / f"{i}.png")
    return folder
