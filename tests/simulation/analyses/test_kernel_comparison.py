"""Random features against the exact kernel, on the features of real runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fed3r_app.config import Config
from fed3r_app.core import FeatureMoments, RandomFeatures, RidgeStatistics, solve_ridge
from fed3r_app.runs.directory import RunDirectory
from simulation.analyses.kernel_comparison import (
    Subset,
    check_fits,
    choose_rows,
    compare_with_kernel,
    kernel_accuracy,
    load_subset,
    random_features_accuracy,
)

RunApp = Callable[..., Path]


@pytest.fixture
def subset() -> Subset:
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 6, generator=random)
    y, y_test = torch.arange(60) % 4, torch.arange(200) % 4
    Z = centres[y] + torch.randn(60, 6, generator=random)
    Z_test = centres[y_test] + torch.randn(200, 6, generator=random)
    return Subset(Z, y, Z_test, y_test, num_classes=5)


def test_the_comparison_on_pixels(run_app: RunApp) -> None:
    directory = run_app("pixels", 5, backbone="pixels", image_size=8)
    steps: list[tuple[int, int]] = []
    lines = compare_with_kernel(
        directory, dims=[20, 800], seeds=2, progress=lambda *step: steps.append(step)
    )
    assert [line.dim for line in lines] == [20, 800, None]
    assert [len(line.accuracies) for line in lines] == [2, 2, 1]
    few, many, exact = (np.mean(line.accuracies) for line in lines)
    assert exact > 0.95
    assert few < many
    assert many == pytest.approx(exact, abs=0.02)
    assert steps[-1] == (5, 5)


def test_features_of_a_fine_tuned_backbone_are_those_of_its_model(
    run_app: RunApp,
) -> None:
    run = partial(
        run_app,
        num_clients=5,
        dataset="digits-small",
        backbone="shufflenet_v2_x0_5",
        weights="random",
        image_size=32,
    )
    tuned = {"finetune": "feat", "rounds": 1, "clients_per_round": 1, "guard": False}

    def features(directory: Path) -> Subset:
        config = Config.from_run_config(RunDirectory(directory).read_config())
        return load_subset(directory, config, per_class=3)

    before, after = features(run("before")), features(run("after", **tuned))
    assert torch.equal(before.y, after.y)
    assert before.Z.shape == after.Z.shape
    assert not torch.allclose(before.Z, after.Z)


def test_at_most_so_many_of_each_class() -> None:
    labels = np.array([0] * 10 + [2] * 3 + [1] * 50)
    rows = choose_rows(labels, 5, seed=0)
    assert np.bincount(labels[rows]).tolist() == [5, 5, 3]
    assert np.array_equal(rows, np.unique(rows))
    assert np.array_equal(rows, choose_rows(labels, 5, seed=0))
    assert not np.array_equal(rows, choose_rows(labels, 5, seed=1))
    with pytest.raises(ValueError, match="per-class must be >= 1, got 0"):
        choose_rows(labels, 0, seed=0)


def test_more_features_than_images_are_solved_by_the_dual_with_the_same_outcome(
    subset: Subset,
) -> None:
    sigma = FeatureMoments.of(subset.Z).sigma()
    phi = RandomFeatures(6, 100, sigma, seed=3)
    W = solve_ridge(RidgeStatistics.of(phi(subset.Z), subset.y, 5), 0.1)
    scores = (phi(subset.Z_test) @ W)[:, :4]  # no image has the fifth class
    expected = float((scores.argmax(dim=1) == subset.y_test).double().mean())
    assert random_features_accuracy(subset, 100, sigma, 0.1, seed=3) == expected


def test_many_random_features_come_to_the_kernel(
    subset: Subset,
) -> None:
    sigma = FeatureMoments.of(subset.Z).sigma()
    exact = kernel_accuracy(subset, sigma, 0.1)
    near = [random_features_accuracy(subset, 20_000, sigma, 0.1, s) for s in (0, 1)]
    assert near == pytest.approx([exact, exact], abs=0.02)


def test_a_class_without_training_images_is_never_predicted(subset: Subset) -> None:
    # All scores are negative but those of the fifth class, which no image has.
    scores = torch.tensor([-1.0, -2.0, -3.0, -4.0, 9.0])
    assert subset.accuracy(lambda Z: scores.expand(len(Z), 5)) == 1 / 4


def test_a_kernel_that_does_not_fit_is_refused_before_anything_is_extracted() -> None:
    check_fits(1000, memory=24_000_000)
    with pytest.raises(ValueError, match=r"1,001 images takes 0 GB, and there are 0"):
        check_fits(1001, memory=24_000_000)
    with pytest.raises(ValueError, match=r"exact kernel of 10,000,000 images"):
        check_fits(10_000_000)
