"""Networks of other libraries in whole runs: closed form, training, predictions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main as fed3r
from fed3r_app.features.backbone import load_backbone
from fed3r_app.runs.model_file import saved_backbone
from tests.docs.markdown import PAGES, ROOT, blocks
from tests.features.conftest import Save
from tests.harness.fixtures import app_runs
from tests.harness.pixels import save_sides
from tests.harness.runs import AppRuns

SETTINGS: dict[str, Any] = {
    **{"dataset": "imagefolder", "partition": "iid", "clients-per-round": 0},
    **{"ridge-lambda": 0.1, "rounds": 1, "batch-size": 4, "lr": 1e-3},
}
NETWORKS = ("vit_tiny_patch16_224", "test_convnext", "dinov2", "clip", "siglip-vision")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    """Run the app on a dozen pictures, of two kinds, over two clients."""
    monkeypatch.setattr("fed3r_app.runs.recorder.plot_run", lambda *_: None)
    parts = {"train": {"left": 6, "right": 6}, "test": {"left": 3, "right": 3}}
    folder = save_sides(tmp_path / "sides", parts)
    return app_runs(tmp_path, monkeypatch, SETTINGS | {"data-path": str(folder)})


@pytest.mark.parametrize("name", NETWORKS)
def test_a_closed_form_is_learnt_evaluated_and_predicts(
    run: AppRuns, saved: Save, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    network = saved(name)
    weights = str(network.folder)
    outcome = run(2, backbone=network.backbone, weights=weights)
    assert outcome.summary["status"] == "complete"
    assert outcome.summary["accuracy"] > 0.8
    model, random = outcome.model, np.random.default_rng(0)
    assert (model.backbone.name, model.backbone.weights) == (network.backbone, weights)
    path = run.root / "one.png"
    Image.fromarray(random.integers(0, 256, (50, 44, 3), np.uint8)).save(path)
    features = network.features(Image.open(path))
    scores = model.scores(features[None])[0].tolist()
    assert fed3r(["predict", str(outcome.directory), str(path)]) == 0
    shown = capsys.readouterr().out
    for label, score in zip(model.class_names, scores, strict=True):
        assert f"{label} ({score:.3f})" in shown


@pytest.mark.parametrize("finetune", ["lp", "feat", "full"])
@pytest.mark.parametrize("name", ["test_resnet", "dinov2"])
def test_a_round_of_fine_tuning_trains_the_network(
    run: AppRuns, saved: Save, name: str, finetune: str
) -> None:
    network = saved(name)
    how: dict[str, Any] = {"guard": False, "refit": False, "finetune": finetune}
    if finetune == "full":  # some parameters have no part in the features
        how["optimizer"] = "scaffold"
    outcome = run(2, backbone=network.backbone, weights=str(network.folder), **how)
    assert outcome.summary["status"] == "complete"
    assert len(outcome.tuning) == 1 and outcome.tuning[0]["clients_trained"] == 2
    sent, received = outcome.trained[0].sent(), outcome.trained[0].received()
    moved = {key.split(".")[0] for key in sent if (sent[key] != received[key]).any()}
    expected = {"lp": {"classifier"}, "feat": {"backbone"}}
    assert moved == expected.get(finetune, {"backbone", "classifier"})


def test_joined_backbones_are_learnt_from_and_predict(
    run: AppRuns, saved: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = saved("test_resnet"), saved("dinov2")
    name = f"{one.backbone}+{other.backbone}"
    outcome = run(2, backbone=name, weights=f"{one.folder}+{other.folder}")
    assert outcome.summary["accuracy"] == 1.0
    assert outcome.model.W.shape[0] == 96 + 16
    assert saved_backbone(outcome.model).parts[1].name == other.backbone
    path = next(run.root.parent.rglob("sides/test/left/*"))
    assert fed3r(["predict", str(outcome.directory), str(path), "--top", "1"]) == 0
    assert ": left (" in capsys.readouterr().out


def test_a_run_that_said_packaged_is_resumed_by_the_default(run: AppRuns) -> None:
    settings: dict[str, Any] = {"backbone": "mobilenet_v2", "image_size": 32}
    before = run(2, weights="packaged", **settings).model
    outcome = run(2, resume=True, method="fedncm", **settings)
    assert "train.statistics" not in outcome.grid.asked
    assert outcome.model.backbone.fingerprint() == before.backbone.fingerprint()
    assert (before.backbone.weights, outcome.model.backbone.weights) == (
        "packaged",
        "auto",
    )


def test_the_documents_own_network_runs(
    run: AppRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = (
        block
        for block in blocks(PAGES["docs/data-and-backbones.md"], "python")
        if "GroupNorm" in block
    )
    (tmp_path / "group_norm.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run(2, backbone="python:group_norm:make", image_size=32)
    assert outcome.summary["status"] == "complete"
    assert outcome.model.W.shape[0] == 1280
    module = saved_backbone(outcome.model).module
    norms = [part for part in module.modules() if isinstance(part, torch.nn.GroupNorm)]
    assert len(norms) == 52 and {norm.num_groups for norm in norms} == {8}
    assert not any(isinstance(p, torch.nn.BatchNorm2d) for p in module.modules())


def test_a_model_whose_code_has_changed_is_refused(
    run: AppRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = (
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Flatten(), {'resize': 8, 'crop': 8}\n"
    )
    (tmp_path / "changing.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run(2, backbone="python:changing:make")
    (tmp_path / "changing.py").write_text(code.replace("nn.Flatten", "nn.Flatten "))
    del sys.modules["changing"]  # as in another process
    load_backbone.cache_clear()
    assert fed3r(["predict", str(outcome.directory), "image.png"]) == 1
    assert "must be those that the model was made with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_source_takes_the_files_that_the_page_names(tmp_path: Path) -> None:
    page = PAGES["docs/extending.md"].split("## Add a source of backbones")[1]
    module, _ = blocks(page.split("\n## ")[0], "python")
    for package in ("fed3r_app", "strategies", "clients", "simulation"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    sources = tmp_path / "fed3r_app/features/sources"
    (sources / "colour.py").write_text(module)
    table = (sources / "__init__.py").read_text()
    line = '    "python": Source("python_code"),\n'
    assert line in table
    (sources / "__init__.py").write_text(
        table.replace(line, f'{line}    "colour": Source("colour"),\n')
    )
    program = (
        "from fed3r_app import client_app, server_app\n"
        "from fed3r_app.config import DEFAULTS\n"
        "from simulation.engines.inline import run_inline\n"
        "config = DEFAULTS | {'dataset': 'digits-small', 'backbone': 'colour:mean',\n"
        "                     'image-size': 8, 'run-name': 'colours'}\n"
        "run_inline(server_app.app, client_app.app, num_clients=3, run_config=config)\n"
    )
    folders = {"FED3R_CACHE_DIR": str(tmp_path / "cache"), "FED3R_OUTPUT_DIR": "runs"}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **folders}
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True
    )
    assert (tmp_path / "runs" / "colours" / "model.safetensors").is_file()
    after = {path for path in before if path.read_bytes() != before[path]}
    assert after == {sources / "__init__.py"}
