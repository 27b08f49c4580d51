"""``privacy``: what differential privacy costs in accuracy, at so many samples.

The release, the penalty and the solution are those of a run. More samples than there
are features at hand are made by scaling: m times the statistics are those of m times as
many samples of the same kind, and the noise stays as it is.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch

from fed3r_app.core import (
    FeatureMap,
    RidgeStatistics,
    class_means,
    count_correct,
    select_lambda,
    solve_ridge,
)
from fed3r_app.data import load_dataset
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.gaussian import (
    NORM,
    PrivacyBudget,
    gaussian_mechanism,
    private_lambda,
    secure_normals,
)
from simulation.bench.inputs import Features, describe_inputs, load_features
from simulation.bench.measure import announce
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Cell, Table

_DELTA = 1e-5
_EPSILONS = (1.0, 2.0, 4.0, 8.0)
# What the digits must reach at each epsilon, in the mean of five draws of the noise.
_WANTED = (0.80, 0.86, 0.89, 0.90)
_DRAWS = 5
_SAMPLES = (10_000, 100_000, 300_000, 1_000_000, 10_000_000)


def run(options: Options) -> Result:
    """Measure accuracy against epsilon and the number of samples."""
    digits = _digits()
    rows = [_row(digits, method, 1, _DRAWS) for method in ("fed3r", "fedncm")]
    ratios = [
        Ratio(f"digits, epsilon {epsilon:g}: accuracy", float(reached), wanted)  # type: ignore[arg-type]
        for epsilon, reached, wanted in zip(
            _EPSILONS, rows[0][2:], _WANTED, strict=False
        )
    ]
    tables = [Table(f"digits, d = 64, mean of {_DRAWS} draws", _columns(), rows)]
    features = load_features(options.data, 500 if options.quick else None)
    samples = _SAMPLES[:2] if options.quick else _SAMPLES
    rows = [
        _row(features, method, -(-n // len(features.Z)), 1)
        for method in ("fed3r", "fedncm")
        for n in samples
    ]
    d, num_classes = features.Z.shape[1], features.num_classes
    title = f"features of MobileNetV2, d = {d:,}, C = {num_classes}, one draw"
    tables.append(Table(title, _columns(), rows))
    return Result(tables, ratios, [describe_inputs(options.data)])


def _columns() -> tuple[str, ...]:
    budgets = (f"epsilon {epsilon:g}" for epsilon in _EPSILONS)
    return ("method", "samples", *budgets, "no noise")


def _row(features: Features, method: str, times: int, draws: int) -> tuple[Cell, ...]:
    """Return the accuracies for so many times the samples."""
    announce(f"{method}, {times * len(features.Z):,} samples")
    feature_map = FeatureMap(features.Z.shape[1], norm=NORM)
    once = RidgeStatistics.of(feature_map(features.Z), features.y, features.num_classes)
    exact = RidgeStatistics(times * once.A, times * once.b, times * once.counts)
    Z_test = feature_map(features.Z_test)
    shape = (exact.d, exact.num_classes)

    def accuracy(stats: RidgeStatistics, lam: float) -> float:
        W = solve_ridge(stats, lam) if method == "fed3r" else class_means(stats)
        correct = count_correct(Z_test, features.y_test, W, stats.counts > 0)
        return correct / len(features.y_test)

    cells: list[Cell] = [method, exact.n]
    for epsilon in _EPSILONS:
        sigma = PrivacyBudget(epsilon, _DELTA).central_sigma(*shape)
        lam = private_lambda(sigma, exact.d)
        drawn = (gaussian_mechanism(exact, sigma, secure_normals) for _ in range(draws))
        cells.append(statistics.mean(accuracy(stats, lam) for stats in drawn))
    return (*cells, accuracy(exact, select_lambda(exact)))


def _digits() -> Features:
    """Return the pixels of the digits at 8 x 8."""
    data = load_dataset("digits", "")
    assert data.test is not None
    backbone = load_backbone(BackboneSpec("pixels", "none", 8))
    cpu = torch.device("cpu")
    parts = (data.train, data.test)
    Z, Z_test = (
        extract_features(backbone, images, np.arange(len(images)), device=cpu)
        for images in parts
    )
    y, y_test = (torch.from_numpy(images.labels.copy()) for images in parts)
    return Features(Z, y, Z_test, y_test, len(data.class_names))
