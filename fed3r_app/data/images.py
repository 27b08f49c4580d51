"""Labelled images that are read one at a time, and the data sets made of them."""

import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from fed3r_app.data.reading import Reading, UnreadableImage
from fed3r_app.errors import is_transient

# Length of the digest of an image.
DIGEST_BYTES = 16
_NEWEST = Reading()


class ImageSet(ABC):
    """Labelled images, read lazily.

    The labels (n,), one for each of the images, are kept as a read-only copy: sets are
    cached and shared.
    """

    labels: NDArray[np.int64]

    def __init__(self, labels: ArrayLike, num_images: int) -> None:
        self.labels = np.array(labels, dtype=np.int64)
        self.labels.setflags(write=False)
        if self.labels.shape != (num_images,):
            raise ValueError(
                f"labels must have one entry for each of the {num_images} images, "
                f"got shape {self.labels.shape}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int, reading: Reading = _NEWEST) -> Image.Image:
        """Return one image, RGB or L; nothing else is read.

        Raises UnreadableImage where that can't be done.
        """

    @abstractmethod
    def digest(self, index: int) -> bytes:
        """Return the digest of the content of one image."""

    @cached_property
    def identity(self) -> str:
        """Hex digest that names exactly these images in this order, made when asked."""
        return self._digest()

    @cached_property
    def listing(self) -> str:
        """Hex digest that names which images there are, in this order.

        Images that can be mended, because they lie in files, keep it meanwhile.
        """
        return self.identity

    @abstractmethod
    def _digest(self) -> str:
        """Return the digest behind `identity`."""


class ArrayImages(ImageSet):
    """Images held in memory as pixels, uint8 of shape (n, h, w, 3)."""

    def __init__(self, pixels: NDArray[np.uint8], labels: ArrayLike) -> None:
        super().__init__(labels, len(pixels))
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(
                "pixels must be uint8 of shape (n, h, w, 3), "
                f"got {pixels.dtype} of shape {pixels.shape}."
            )
        self._pixels = np.ascontiguousarray(pixels)

    def image(self, index: int, reading: Reading = _NEWEST) -> Image.Image:
        """Return one image in RGB; nothing is left to be read."""
        return Image.fromarray(self._pixels[index])

    def subset(self, rows: NDArray[np.int64]) -> Self:
        """Return some of the images, in the order of the rows."""
        return type(self)(self._pixels[rows], self.labels[rows])

    def digest(self, index: int) -> bytes:
        """Return the digest of the pixels of one image."""
        pixels = self._pixels[index]
        return _new_digest(repr(pixels.shape[1::-1]), pixels.data).digest()

    def _digest(self) -> str:
        return _new_digest(repr(self._pixels.shape), self._pixels.data).hexdigest()


class EncodedImages(ImageSet):
    """Images held in memory as the bytes of image files (JPEG, PNG, …)."""

    def __init__(self, files: Sequence[bytes], labels: ArrayLike) -> None:
        super().__init__(labels, len(files))
        self._files = files

    def image(self, index: int, reading: Reading = _NEWEST) -> Image.Image:
        """Return one image, RGB or L."""
        return reading.read(io.BytesIO(self._files[index]), f"image {index}")

    def file(self, index: int) -> bytes:
        """Return the image file of one image."""
        return self._files[index]

    def digest(self, index: int) -> bytes:
        """Return the digest of the bytes of one image."""
        return _new_digest("", self._files[index]).digest()

    def _digest(self) -> str:
        # The lengths come first, so that no two lists of files run together.
        lengths = repr([len(file) for file in self._files])
        return _new_digest(lengths, *self._files).hexdigest()


class FileImages(ImageSet):
    """Images in files, one file each, opened when asked for.

    Asking for `identity` looks up every file without opening it, so that is where
    missing images are reported, before any work on the set. The server asks for that
    of the training images, too: it decides whether a run may be resumed. Paths are
    relative to root.
    """

    def __init__(self, root: Path, paths: Sequence[str], labels: ArrayLike) -> None:
        super().__init__(labels, len(paths))
        self._root = root
        self._paths = paths

    def image(self, index: int, reading: Reading = _NEWEST) -> Image.Image:
        """Return one image, RGB or L."""
        with self._open(index) as file:
            return reading.read(file, file.name)

    def digest(self, index: int) -> bytes:
        """Return the digest of the file of one image."""
        with self._open(index) as file:
            return _new_digest("", file.read()).digest()

    def subset(self, rows: NDArray[np.int64]) -> Self:
        """Return some of the images, in the order of the rows."""
        paths = [self._paths[row] for row in rows]
        return type(self)(self._root, paths, self.labels[rows])

    @cached_property
    def stamps(self) -> tuple[bytes, ...]:
        """The path, size and time of every image, looked up without opening."""
        stamps, missing = [], []
        for path in self._paths:
            try:
                status = os.stat(os.path.join(self._root, path))
            except OSError:
                missing.append(path)
                stamps.append(os.fsencode(path) + b"\0missing")
                continue
            times = b"\0%d\0%d\0" % (status.st_size, status.st_mtime_ns)
            stamps.append(os.fsencode(path) + times)
        self._check_complete(missing)
        return tuple(stamps)

    @cached_property
    def listing(self) -> str:
        """Hex digest of paths and labels: what a split depends on."""
        paths = [os.fsencode(path) + b"\0" for path in self._paths]
        return _new_digest("listing", self.labels.tobytes(), *paths).hexdigest()

    @cached_property
    def location(self) -> str:
        """Hex digest that names the folder and the paths, not what the files hold."""
        paths = [os.fsencode(path) + b"\0" for path in self._paths]
        return _new_digest("", self._real_root + b"\0", *paths).hexdigest()

    def _check_complete(self, missing: Sequence[str]) -> None:
        if missing:
            # The sentence may go to the server: it must not show how many there are.
            raise FileNotFoundError(
                f"data-path must hold all images, got {self._root} without some of "
                f"them; the first is {missing[0]}."
            )

    @property
    def _real_root(self) -> bytes:
        return os.fsencode(os.path.realpath(self._root))

    def _open(self, index: int) -> BinaryIO:
        """Return the open file of one image."""
        path = self._root / self._paths[index]
        try:
            return path.open("rb")
        except OSError as error:
            if is_transient(error):
                raise
            raise UnreadableImage(
                f"{path} must be a readable image, got: {error.strerror}."
            ) from error

    def _digest(self) -> str:
        return _new_digest("files", *self.stamps).hexdigest()


class OwnImages(FileImages):
    """Images in a folder of a node's own, where files come and go.

    One that is missing, though a table names it, is like one that can't be read.
    """

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Hex digests that name each image: its folder, path, size and time."""
        # With the folder: nodes that share a machine may have the same paths.
        root = self._real_root + b"\0"
        return tuple(_new_digest("", root, stamp).hexdigest() for stamp in self.stamps)

    @property
    def folder_key(self) -> str:
        """Hex digest that names the folder."""
        return _new_digest("", self._real_root).hexdigest()

    def _check_complete(self, missing: Sequence[str]) -> None:
        pass

    def _digest(self) -> str:
        return _new_digest(" ".join(self.keys)).hexdigest()


class GivenFeatures(ImageSet):
    """Samples that come as d = dim features, with no images behind them."""

    def __init__(self, labels: NDArray[np.int64], dim: int) -> None:
        super().__init__(labels, len(labels))
        self.dim = dim

    @abstractmethod
    def features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features (m, d) of some rows."""

    def digest(self, index: int) -> bytes:
        """Return a digest of the set and the row: they name the sample exactly."""
        return _new_digest(f"{self.identity} {index}").digest()

    def image(self, index: int, reading: Reading = _NEWEST) -> Image.Image:
        """Refuse: there is none."""
        raise ValueError(f"Sample {index} has features and no image.")


@dataclass(frozen=True, eq=False)  # compared and hashed as an object: a cheap cache key
class DataSet:
    """A classification problem, and its natural clients where it has them."""

    name: str  # `dataset` in the run config
    class_names: tuple[str, ...]  # of the C classes; labels index it
    train: ImageSet
    test: ImageSet | None
    # Sorted rows of train of each natural client; None without a natural split.
    clients: tuple[NDArray[np.int64], ...] | None = None
    client_names: tuple[str, ...] | None = None  # in increasing order
    # Which rows of train (n,) are test images instead; None without any.
    held_out: NDArray[np.bool_] | None = None
    held_out_classes: tuple[str, ...] = ()  # all of whose images are held out

    @property
    def training_rows(self) -> NDArray[np.int64]:
        """The rows of train to train on."""
        if self.held_out is None:
            return np.arange(len(self.train))
        return np.flatnonzero(~self.held_out)

    @property
    def feature_dim(self) -> int | None:
        """Number of features d where the data set has features in place of images."""
        return self.train.dim if isinstance(self.train, GivenFeatures) else None


def _new_digest(start: str, *parts: bytes | memoryview) -> "hashlib.blake2b":
    """Return a 128-bit digest that has taken in `start` and the parts."""
    digest = hashlib.blake2b(start.encode(), digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest
