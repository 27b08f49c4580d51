"""Four clinics with images of their own, TLS and node authentication, as processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.runs.model_file import load_model

pytestmark = pytest.mark.slow
SIZE, LAM = 8, 0.5
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-d": ("yak", "yak", "owl"),
}
LABELS = ["cat", "dog", "elk", "owl", "yak"]
SETTINGS = {
    "dataset": "local",
    "backbone": "pixels",
    "image_size": SIZE,
    "ridge_lambda": LAM,
    "upload_dtype": "float64",
    "wait_for": len(CLINICS),
}


def write_images(folder: Path, seed: int) -> Any:
    """Write the clinics' images; return their pixels and labels, pooled."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for clinic, class_names in CLINICS.items():
        for part in ("train", "test"):
            for number, name in enumerate(class_names):
                path = folder / clinic / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                grey = rng.integers(256, size=(SIZE, SIZE), dtype=np.uint8)
                Image.fromarray(grey).save(path)
                if part == "train":
                    rows.append(grey.reshape(-1) / np.float32(255))
                    labels.append(LABELS.index(name))
    return torch.tensor(np.array(rows)), torch.tensor(labels)


def test_four_clinics_get_the_classifier_of_the_pooled_images_and_a_fifth_is_refused(
    deploy: Any, tmp_path: Path
) -> None:
    Z, y = write_images(tmp_path, seed=0)
    nodes = {
        name: {"data-path": str(tmp_path / name), "client-id": name} for name in CLINICS
    }
    federation = deploy(nodes, secure=True, strangers=["stranger"])
    stranger = {"data-path": str(tmp_path / "clinic-a"), "client-id": "stranger"}
    federation.deployment.start_supernode("stranger", stranger)
    outcome = federation.run("first", **SETTINGS)
    assert outcome.completed, outcome.output
    W = solve_ridge(RidgeStatistics.of(Z, y, len(LABELS)), LAM)
    model = load_model(outcome.directory / "model.safetensors")
    assert list(model.class_names) == LABELS
    assert float((model.W - W).norm() / W.norm()) <= 1e-9
    assert outcome.summary["clients_counted"] == outcome.summary["clients"] == 4
    assert outcome.summary["client_test_images"] == len(Z)
    assert outcome.summary["rounds"] == 1
    assert federation.deployment.exit_code("stranger", timeout=30) != 0
