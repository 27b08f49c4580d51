"""Random features against exact kernel ridge regression, on the features of a run.

Both see the same few images per class, with the backbone of the run's model, fine-tuned
or not. As the number D of random features grows, Fed3R-RF comes to the exact kernel.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.config import Config
from fed3r_app.core import (
    FeatureMoments,
    RandomFeatures,
    RidgeStatistics,
    select_lambda,
    solve_ridge,
)
from fed3r_app.core.statistics import check_samples
from fed3r_app.data import load_dataset
from fed3r_app.features.backbone import resolve_device
from fed3r_app.features.extraction import cached_features, extract_features
from fed3r_app.files.row_cache import cache_dir
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import load_model, saved_backbone
from simulation.analyses.kernel_ridge import rbf_kernel, solve_dual

_CHUNK = 2048  # test images whose kernel rows are held at a time
_MATRICES = 3  # of n x n: the kernel, its factor, and one in passing


@dataclass(frozen=True, eq=False)
class Subset:
    """Features Z (n, d), Z_test (m, d) and labels y (n,), y_test (m,) of C classes."""

    Z: Tensor
    y: Tensor
    Z_test: Tensor
    y_test: Tensor
    num_classes: int

    def accuracy(self, scores: Callable[[Tensor], Tensor]) -> float:
        """Return the share of the test images whose class has the largest score.

        Classes (C,) without training images are never predicted.
        """
        absent = torch.bincount(self.y, minlength=self.num_classes) == 0
        correct = 0
        for start in range(0, len(self.y_test), _CHUNK):
            part = slice(start, start + _CHUNK)
            possible = scores(self.Z_test[part]).masked_fill(absent, -torch.inf)
            correct += int((possible.argmax(dim=1) == self.y_test[part]).sum())
        return correct / len(self.y_test)


@dataclass(frozen=True)
class Line:
    """The accuracies with D random features, a seed each; D = None is the kernel."""

    dim: int | None
    accuracies: tuple[float, ...]


def compare_with_kernel(
    run_dir: Path,
    dims: Sequence[int],
    per_class: int = 40,
    seeds: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Line]:
    """Return the accuracies of random features and, last, of the exact kernel.

    Of a finished run: its model's backbone, data set, ridge-lambda and rf-sigma, and
    at most ``per_class`` training images of each class. There are ``seeds`` draws for
    each D of ``dims``. Progress is called with the number of classifiers done and of
    all.
    """
    config = Config.from_run_config(RunDirectory(run_dir).read_config())
    subset = load_subset(run_dir, config, per_class)
    lam = None if config.ridge_lambda == "auto" else config.ridge_lambda
    sigma = config.rf_sigma
    if sigma == "auto":
        sigma = FeatureMoments.of(subset.Z).sigma()
    lines, total, done = [], len(dims) * seeds + 1, itertools.count(1)
    for D in dims:
        accuracies = []
        for seed in range(seeds):
            accuracies.append(random_features_accuracy(subset, D, sigma, lam, seed))
            progress(next(done), total)
        lines.append(Line(D, tuple(accuracies)))
    lines.append(Line(None, (kernel_accuracy(subset, sigma, lam),)))
    progress(total, total)
    return lines


def kernel_accuracy(subset: Subset, sigma: float, lam: float | None) -> float:
    """Return the accuracy of exact kernel ridge regression, normalised as Fed3R."""
    Z, y, C = subset.Z.double(), subset.y, subset.num_classes
    check_samples(Z, y, C)
    alpha = solve_dual(rbf_kernel(Z, Z, sigma), y, C, lam)
    return subset.accuracy(lambda X: rbf_kernel(X.double(), Z, sigma) @ alpha)


def random_features_accuracy(
    subset: Subset, D: int, sigma: float, lam: float | None, seed: int
) -> float:
    """Return the accuracy of Fed3R with D random features.

    With more features than images the dual problem is the smaller one; its solution is
    the same.
    """
    phi = RandomFeatures(subset.Z.shape[1], D, sigma, seed)
    Z, y, C = phi(subset.Z), subset.y, subset.num_classes
    if len(Z) < D:
        W = Z.T @ solve_dual(Z @ Z.T, y, C, lam)
    else:
        stats = RidgeStatistics.of(Z, y, C)
        W = solve_ridge(stats, select_lambda(stats) if lam is None else lam)
    return subset.accuracy(lambda X: phi(X) @ W)


def load_subset(run_dir: Path, config: Config, per_class: int) -> Subset:
    """Return the features of at most ``per_class`` images of each class of a run."""
    dataset = load_dataset(config.dataset, config.data_path, config.test_share)
    if dataset.test is None:
        raise ValueError(f"{dataset.name} has no test images to compare on.")
    model = load_model(RunDirectory(run_dir).model_path)
    backbone = saved_backbone(model, dataset.feature_dim)
    read: Callable[..., Tensor] = partial(cached_features, cache_dir=cache_dir())
    if model.backbone_arrays:  # features of a fine-tuned backbone are not kept
        read = extract_features
    device, dtype = resolve_device(config.device), config.extract_dtype
    rows = dataset.training_rows
    chosen = choose_rows(dataset.train.labels[rows], per_class, config.seed)
    rows = rows[chosen]
    check_fits(len(rows))
    parts = ((dataset.train, rows), (dataset.test, np.arange(len(dataset.test))))
    Z, Z_test = (read(backbone, *part, device=device, dtype=dtype) for part in parts)
    y, y_test = (torch.from_numpy(images.labels[rows]) for images, rows in parts)
    return Subset(Z, y, Z_test, y_test, len(dataset.class_names))


def choose_rows(
    labels: NDArray[np.int64], per_class: int, seed: int
) -> NDArray[np.int64]:
    """Return at most ``per_class`` rows of each class, drawn, in increasing order."""
    if per_class < 1:
        raise ValueError(f"per-class must be >= 1, got {per_class}.")
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    parts = [
        shuffled[labels[shuffled] == label][:per_class] for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(parts))


def check_fits(num_images: int, memory: int | None = None) -> None:
    """Raise if the kernel (n, n) of so many images takes more bytes than there are.

    A memory of None asks the system.
    """
    if memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = _MATRICES * 8 * num_images**2
    if needed > memory:
        raise ValueError(
            f"per-class must be smaller: the exact kernel of {num_images:,} images "
            f"takes {needed / 1e9:.0f} GB, and there are {memory / 1e9:.0f}."
        )
