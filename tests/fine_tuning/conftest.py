"""The whole app in this process, on images that are few or small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fed3r_app.data import load_dataset
from tests.harness.fixtures import app_runs
from tests.harness.pixels import PIXELS, save_sides
from tests.harness.runs import AppRuns

# Plain training, whose numbers can be computed by hand: no guard, no clipping.
PLAIN: dict[str, Any] = {
    **{"guard": False, "refit": False, "clip-norm": 0.0, "local-prior": False},
    **{"temperature": 0.1, "augment": False, "batch-size": 50},
}


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _cache: Any) -> AppRuns:
    """Run the app in this process, without pictures: they are slow."""
    monkeypatch.setattr("fed3r_app.runs.recorder.plot_run", lambda *_: None)
    settings = PIXELS | PLAIN | {"eval-every": 1}
    return app_runs(tmp_path, monkeypatch, settings, _cache)


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of digits 0 to 3: 7 images of each to train on, 3 to test."""
    folder = tmp_path_factory.mktemp("few-digits")
    digits = load_dataset("digits", "").train
    for digit in range(4):
        for i, row in enumerate(np.flatnonzero(digits.labels == digit)[:10]):
            path = folder / ("train" if i < 7 else "test") / str(digit)
            path.mkdir(parents=True, exist_ok=True)
            digits.image(int(row)).save(path / f"{i:02d}.png")
    return folder


@pytest.fixture
def few_images(few_digits: Path) -> dict[str, Any]:
    """Return the settings of a run on the few digits at 32 px, by a small network.

    It has batch norms, a last feature map of 1 x 1, and random weights: good enough
    for everything but accuracies.
    """
    return {
        "dataset": "imagefolder",
        "data_path": str(few_digits),
        "backbone": "shufflenet_v2_x0_5",
        "weights": "random",
        "image_size": 32,
        "batch_size": 8,
        "clients_per_round": 0,
        "ridge_lambda": 0.1,
        "rounds": 2,
    }


@pytest.fixture
def few_photos(few_images: dict[str, Any]) -> dict[str, Any]:
    """Return the same with the network of the default run."""
    return few_images | {"backbone": "mobilenet_v2", "weights": "packaged"}


@pytest.fixture
def grey_folder(tmp_path: Path) -> Callable[..., str]:
    """Make a folder with so many grey images of each of some classes."""

    def make(**counts: int) -> str:
        parts = {"train": counts, "test": dict.fromkeys(counts, 2)}
        return str(save_sides(tmp_path / "grey", parts))

    return make
