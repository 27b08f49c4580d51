"""Features of images under a backbone: extracted fast, and only once."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fed3r_app.data.images import (
    ArrayImages,
    FileImages,
    GivenFeatures,
    ImageSet,
    OwnImages,
)
from fed3r_app.data.reading import Reading, UnreadableImage
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.inference_copy import fast_copy
from fed3r_app.files.row_cache import FilePerRowCache, RowCache, SparseFileCache

Progress = Callable[[int, int], None]
Keep = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Part of every key: raise it when the same settings come to give other features.
_CACHE_VERSION = 1
# Fastest measured for MobileNetV2 on a CPU: 5 or 6 images of 224 px, 16 of 128 px, 21
# to 32 of 96 px. Larger activations (32 MB, for glibc) are given back to the system and
# mapped anew for every layer.
_CPU_BATCH, _CPU_BATCH_PIXELS = 32, 2**18
_GPU_BATCH = 256


def extract_features(
    backbone: Backbone,
    images: ImageSet,
    rows: NDArray[np.int64],
    *,
    device: torch.device,
    dtype: str = "float32",
    progress: Progress | None = None,
    keep: Keep | None = None,
    unreadable: UnreadableImages | None = None,
) -> Tensor:
    """Return the features (m, d) of some images, float32, on the CPU.

    The next batch of images is read and resized while the network runs on this one;
    no more than two batches of images are ever in memory.

    Parameters
    ----------
    backbone : Backbone
        Extractor of d features.
    images : ImageSet
        Images to choose from.
    rows : NDArray of shape (m,), int64
        Which images, in any order.
    device : torch.device
        Where the network runs.
    dtype : str
        "float32", or "bfloat16": other features in the third digit, and faster only
        on processors with bfloat16 instructions (many times slower without).
    progress : callable or None
        Called with (images done, m) after each batch.
    keep : callable or None
        Called with the rows and the features of each batch.
    unreadable : UnreadableImages or None
        Takes the images that can't be read, which are left out of the result; None
        raises UnreadableImage for the first of them.
    """
    _check_rows(rows, len(images))
    if isinstance(images, GivenFeatures):
        return torch.from_numpy(images.features(rows))
    if backbone.joined:
        extract = partial(extract_features, device=device, dtype=dtype)
        extract = partial(extract, progress=progress)
        return _side_by_side(backbone, images, rows, extract, unreadable)
    size = _best_batch_size(backbone, device)
    network = _network(backbone, device, _torch_dtype(dtype))
    preprocess = backbone.preprocess
    features = torch.empty(len(rows), backbone.dim)
    count = 0

    def pixels(row: np.int64) -> NDArray[np.uint8] | None:
        try:
            return preprocess.pixels(images.image(int(row), preprocess.reading))
        except UnreadableImage as error:
            if unreadable is None:
                raise
            unreadable.add(int(row), error)
            return None

    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        upcoming = pool.map(pixels, rows[:size])
        for start in range(0, len(rows), size):
            read, done = list(upcoming), min(start + size, len(rows))
            upcoming = pool.map(pixels, rows[done : done + size])
            current = [image for image in read if image is not None]
            if current:
                made = features[count : count + len(current)]
                with torch.inference_mode(), _without_tf32():
                    batch = preprocess.normalize(current, device)
                    made[:] = network(batch.to(_torch_dtype(dtype)))
                count += len(current)
                if keep is not None:
                    there = [image is not None for image in read]
                    keep(rows[start:done][there], made.numpy())
            if progress is not None:
                progress(done, len(rows))
    return features[:count]


def cached_features(
    backbone: Backbone,
    images: ImageSet,
    rows: NDArray[np.int64],
    cache_dir: Path,
    *,
    device: torch.device,
    dtype: str = "float32",
    progress: Progress | None = None,
    unreadable: UnreadableImages | None = None,
) -> Tensor:
    """Return what `extract_features` does, extracting only what was never seen before.

    Only the given rows are read from the cache, and each batch is kept as it is
    done: what was interrupted continues where it stopped. ``progress`` counts the
    images that have to be extracted; ``cache_dir`` is the folder for the features of
    all backbones and data sets.
    """
    _check_rows(rows, len(images))
    if isinstance(images, GivenFeatures):
        return extract_features(backbone, images, rows, device=device)
    if backbone.joined:
        read = partial(cached_features, device=device, dtype=dtype, progress=progress)
        read = partial(read, cache_dir=cache_dir)
        return _side_by_side(backbone, images, rows, read, unreadable)
    cache = _open_cache(backbone, images, dtype, cache_dir)
    features, found = cache.read(rows)
    if not found.all():
        missing = np.unique(rows[~found])
        fresh = extract_features(
            backbone,
            images,
            missing,
            device=device,
            dtype=dtype,
            progress=progress,
            keep=cache.write,
            unreadable=unreadable,
        )
        if unreadable is not None:
            there = unreadable.readable(rows)
            rows, features, found = rows[there], features[there], found[there]
            missing = missing[unreadable.readable(missing)]
        features[~found] = fresh.numpy()[np.searchsorted(missing, rows[~found])]
    return torch.from_numpy(features)


def _side_by_side(
    backbone: Backbone,
    images: ImageSet,
    rows: NDArray[np.int64],
    read: Callable[..., Tensor],
    unreadable: UnreadableImages | None,
) -> Tensor:
    """Return the features (m, d) of a joined backbone, from those of its parts."""
    if unreadable is None:
        return torch.cat([read(part, images, rows) for part in backbone.joined], dim=1)
    made = []
    for part in backbone.joined:
        features = read(part, images, rows, unreadable=unreadable)
        rows = rows[unreadable.readable(rows)]
        made.append((rows, features))
    # An image may have gone after one part had read it.
    return torch.cat([Z[unreadable.readable(there)] for there, Z in made], dim=1)


def readable_rows(
    backbone: Backbone,
    images: ImageSet,
    rows: NDArray[np.int64],
    cache_dir: Path,
    *,
    dtype: str,
    read: Callable[[int], object],
    unreadable: UnreadableImages,
) -> NDArray[np.int64]:
    """Return those of some rows whose images can be read.

    What has features in the cache has been read; ``read`` tries the others, or raises
    UnreadableImage. What it could read is remembered: it is not tried again.
    """
    if isinstance(images, GivenFeatures | ArrayImages):
        return rows
    found = _open_cache(backbone.parts[0], images, dtype, cache_dir).read(rows)[1]
    marks = _open_marks(images, backbone.preprocess.reading, cache_dir)
    untried = rows[~found]
    untried = untried[~marks.read(untried)[1]]

    def try_out(row: np.int64) -> None:
        try:
            read(int(row))
        except UnreadableImage as error:
            unreadable.add(int(row), error)

    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        for _ in pool.map(try_out, untried):
            pass
    good = untried[unreadable.readable(untried)]
    marks.write(good, np.ones((len(good), 1)))
    return rows[unreadable.readable(rows)]


# One: clients that share a process share their backbone, too, and a tuned one is
# another object for every message, never asked for again.
@lru_cache(maxsize=1)
def _network(backbone: Backbone, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the backbone's network made fast; the last one is kept."""
    return fast_copy(backbone.module, device, dtype)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Have a GPU compute with all bits of float32, as a CPU does.

    By torch's default its convolutions use TF32, of 10 bits: their features differ from
    a CPU's by a percent.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    earlier = cudnn.allow_tf32, matmul.allow_tf32
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = False
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = earlier


def _best_batch_size(backbone: Backbone, device: torch.device) -> int:
    if device.type != "cpu":
        return _GPU_BATCH
    return max(1, min(_CPU_BATCH, _CPU_BATCH_PIXELS // backbone.preprocess.crop**2))


def _open_cache(
    backbone: Backbone, images: ImageSet, dtype: str, cache_dir: Path
) -> RowCache:
    """Return the cache of a data set's features; every setting is in its name."""
    about: dict[str, object] = {
        "version": _CACHE_VERSION,
        "backbone": backbone.name,
        "weights-digest": backbone.digest,
        "preprocess": backbone.preprocess.description,
        "dtype": str(_torch_dtype(dtype)),
        "dim": backbone.dim,
    }
    shown = {"weights": backbone.spec.weights}
    return _open_rows(images, backbone.file_name, backbone.dim, about, shown, cache_dir)


def _open_marks(images: ImageSet, reading: Reading, cache_dir: Path) -> RowCache:
    """Return the cache of a data set whose rows are there for images that were read."""
    about: dict[str, object] = {"read by": reading.description}
    return _open_rows(images, "readable", 1, about, {}, cache_dir)


def _open_rows(
    images: ImageSet,
    name: str,
    dim: int,
    about: dict[str, object],
    shown: Mapping[str, object],
    cache_dir: Path,
) -> RowCache:
    """Return the cache of a data set; unlike ``about``, ``shown`` is for people."""
    stamps = None
    if isinstance(images, OwnImages):
        about["data-identity"] = "by image"
    elif isinstance(images, FileImages):
        about["data-identity"], stamps = images.location, images.stamps
    else:
        about["data-identity"] = images.identity
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:32]
    folder = cache_dir / f"{name}-{key}"
    if isinstance(images, OwnImages):
        return FilePerRowCache(folder, dim, images.keys)
    about |= {**shown, "images": len(images)}
    return SparseFileCache(folder, dim, about, stamps=stamps)


def _torch_dtype(dtype: str) -> torch.dtype:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {sorted(_DTYPES)}, got {dtype!r}.")
    return _DTYPES[dtype]


def _check_rows(rows: NDArray[np.int64], num_images: int) -> None:
    if len(rows) and not (0 <= rows.min() and rows.max() < num_images):
        raise ValueError(
            f"rows must be between 0 and {num_images - 1}, "
            f"got {rows.min()} to {rows.max()}."
        )
