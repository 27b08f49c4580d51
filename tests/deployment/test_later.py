"""A run on real nodes, later: one joins, one is forgotten, and the audit agrees."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.runs.model_file import load_model

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
SIZE, LAM = 8, 0.5
CLINICS = {"a": ("cat", "cat", "dog"), "b": ("dog", "owl"), "c": ("cat", "elk", "owl")}


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for clinic, class_names in CLINICS.items():
        for number, name in enumerate(class_names):
            path = folder / clinic / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            grey = rng.integers(256, size=(SIZE, SIZE), dtype=np.uint8)
            Image.fromarray(grey).save(path)


def assert_model_of(directory: Path, folder: Path, clinics: Any) -> None:
    """Check that the model is that of a run with just these clinics."""
    model = load_model(directory / "model.safetensors")
    rows, labels = [], []
    for clinic in clinics:
        for path in sorted((folder / clinic).rglob("*.png")):
            rows.append(np.asarray(Image.open(path)).reshape(-1) / np.float32(255))
            labels.append(model.class_names.index(path.parent.name))
    stats = RidgeStatistics.of(
        torch.tensor(np.array(rows)), torch.tensor(labels), len(model.class_names)
    )
    W = solve_ridge(stats, LAM)
    assert float((model.W - W).norm() / W.norm()) <= 1e-9


def fed3r(federation: Any, command: Any, directory: Path, *arguments: Any) -> Any:
    """Run the command as a user does."""
    environment = federation.deployment.environment | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fed3r_app.cli", command, str(directory)),
            *map(str, arguments),
        ],
        cwd=federation.app,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_clinic_joins_later_and_another_is_forgotten(
    deploy: Any, tmp_path: Path
) -> None:
    write_images(tmp_path)
    nodes = {
        name: {"data-path": str(tmp_path / name), "client-id": name} for name in CLINICS
    }
    federation = deploy({name: nodes[name] for name in "ab"})
    deployment = federation.deployment
    federation.app = deployment.stage(PROJECT)
    outcome = federation.run(
        "it",
        dataset="local",
        backbone="pixels",
        image_size=SIZE,
        ridge_lambda=LAM,
        upload_dtype="float64",
        wait_for=2,
    )
    assert outcome.completed, outcome.output
    assert_model_of(outcome.directory, tmp_path, "ab")

    deployment.start_supernode("c", nodes["c"])
    directory, address = outcome.directory, deployment.address
    said = fed3r(federation, "add", directory, address)
    assert "3 of 3" in said
    assert_model_of(outcome.directory, tmp_path, "abc")

    said = fed3r(federation, "forget", directory, "b", address)
    assert "forgotten clients  1: b" in said
    assert_model_of(outcome.directory, tmp_path, "ac")
    assert "WRONG" not in fed3r(federation, "audit", directory)
