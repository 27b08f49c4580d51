"""What benchmarks work on: real client sizes, features and images, or stand-ins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fed3r_app.core import FeatureMap, FeatureMoments
from fed3r_app.data.client_sizes import draw_client_sizes, read_client_sizes

_SIZES = "client_sizes"
_FEATURES = "cifar100-mobilenetv2-features.npz"
IMAGES = "cifar100-images.npz"
_STAND_INS = {
    _SIZES: "client sizes are log-normal with the published mean",
    _FEATURES: "features are drawn around class centres",
    IMAGES: "images are the digits",
}
_PARTS = {"train": 2000, "test": 200}  # number of images


def find(data: Path | None, name: str) -> Path | None:
    """Return a file of real data, where the folder has it."""
    path = data / name if data else None
    return path if path is not None and path.exists() else None


@dataclass(frozen=True)
class PublishedFederation:
    """Clients, classes and the published mean number of images of a client."""

    name: str
    num_clients: int
    num_classes: int
    mean_size: float

    def sizes_file(self, data: Path | None) -> Path | None:
        """Return the file of the real sizes, where a folder of data has it."""
        return find(data, f"{_SIZES}/{self.name}.csv")

    def sizes(self, data: Path | None) -> NDArray[np.int64]:
        """Return the number of images of each client (K,), real or log-normal."""
        if path := self.sizes_file(data):
            return np.array(list(read_client_sizes(path).values()), dtype=np.int64)
        return draw_client_sizes(self.num_clients, self.mean_size, seed=0)


INATURALIST = PublishedFederation("inaturalist-users-120k", 9275, 1203, 13.0)
LANDMARKS = PublishedFederation("landmarks-users-160k", 1262, 2028, 119.9)
FEDERATIONS = (
    INATURALIST,
    LANDMARKS,
    PublishedFederation("inaturalist-geo-100", 3606, 1203, 33.4),
    PublishedFederation("inaturalist-geo-1k", 368, 1203, 326.9),
)


@dataclass(frozen=True, eq=False)
class Features:
    """Features (n, d) and labels (n,), to train and to test on."""

    Z: Tensor
    y: Tensor
    Z_test: Tensor
    y_test: Tensor
    num_classes: int

    def split(self, num_clients: int) -> list[Tensor]:
        """Return the rows of each client, in a random split."""
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(0))
        return list(order.tensor_split(num_clients))

    def random_map(self, D: int) -> FeatureMap:
        """Return a map to D random features, as wide as the features are spread."""
        return FeatureMap(self.Z.shape[1], D, FeatureMoments.of(self.Z).sigma())


def load_features(data: Path | None, limit: int | None = None) -> Features:
    """Return real features of CIFAR-100, or drawn ones around class centres."""
    path = find(data, _FEATURES)
    if path is None:
        return _draw_features(limit or 10_000)
    with np.load(path) as arrays:
        Z, Z_test = (torch.from_numpy(arrays[f"z_{part}"]).float() for part in _PARTS)
        y, y_test = (torch.from_numpy(arrays[f"y_{part}"]).long() for part in _PARTS)
    return Features(Z[:limit], y[:limit], Z_test, y_test, num_classes=100)


def _draw_features(n: int, d: int = 1280, num_classes: int = 100) -> Features:
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(num_classes, d, generator=random)
    y = torch.randint(num_classes, (n + n // 5,), generator=random)
    Z = (centres[y] + 4 * torch.randn(len(y), d, generator=random)).relu()
    return Features(Z[:n], y[:n], Z[n:], y[n:], num_classes)


def describe_inputs(data: Path | None) -> str:
    """Return a note that says where sizes, features and images come from."""
    missing = [name for name in (_FEATURES, IMAGES) if not find(data, name)]
    if not all(federation.sizes_file(data) for federation in FEDERATIONS):
        missing.insert(0, _SIZES)
    if not missing:
        return f"Client sizes, features and images: {data}."
    made = ", ".join(_STAND_INS[name] for name in missing)
    return f"Without {', '.join(missing)} in a folder given by --data: {made}."


def image_folder(folder: Path, images: Path) -> Path:
    """Return the folder with some real images to train and to test on."""
    with np.load(images) as arrays:
        for part, number in _PARTS.items():
            pixels, labels = arrays[f"x_{part}"][:number], arrays[f"y_{part}"][:number]
            write_images(folder / part, pixels, labels.astype(np.int64))
    for kept in (folder / "test").iterdir():  # both parts have the same classes
        (folder / "train" / kept.name).mkdir(exist_ok=True)
    return folder


def write_images(
    folder: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    """Write images (n, ...) of labels (n,) into a folder for each class."""
    for row, label in enumerate(labels):
        path = folder / f"{label:03d}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row]).save(path)
