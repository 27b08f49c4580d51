"""Clinics with images of their own, as processes: the classifier of the pooled images.

Later one joins, one is forgotten, and the audit agrees.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.cli import main
from fed3r_app.runs.model_file import load_model
from tests.harness.deployment import PROJECT
from tests.harness.nodes import Federation
from tests.harness.pixels import LAM, SIZE, assert_close
from tests.harness.runs import AppRuns

pytestmark = pytest.mark.slow
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-d": ("yak", "yak", "owl"),
}
SETTINGS = {
    "dataset": "local",
    "backbone": "pixels",
    "image_size": SIZE,
    "ridge_lambda": LAM,
    "upload_dtype": "float64",
}


@pytest.fixture
def images(tmp_path: Path) -> Federation:
    """The clinics' images, as many for training as for tests."""
    images = Federation(tmp_path / "images", AppRuns(tmp_path, {}))
    for seed, (clinic, class_names) in enumerate(CLINICS.items()):
        for part in ("train", "test"):
            images.add_images(images.folder(clinic) / part, class_names, seed)
    return images


def assert_model_of(directory: Path, images: Federation, clinics: Any) -> None:
    """Check that the model is that of a run with just these clinics."""
    model = load_model(directory / "model.safetensors")
    folders = [images.folder(clinic) / "train" for clinic in clinics]
    assert_close(model.W, images.pooled(folders, model.class_names))


def test_four_clinics_get_the_classifier_of_the_pooled_images_and_a_fifth_is_refused(
    deploy: Any, images: Federation
) -> None:
    nodes = {name: images.node_config(name) for name in CLINICS}
    federation = deploy(nodes, secure=True, strangers=["stranger"])
    stranger = nodes["clinic-a"] | {"client-id": "stranger"}
    federation.deployment.start_supernode("stranger", stranger)
    outcome = federation.run("first", wait_for=4, **SETTINGS)
    assert outcome.completed, outcome.output
    assert outcome.model.class_names == ("cat", "dog", "elk", "owl", "yak")
    assert_model_of(outcome.directory, images, CLINICS)
    assert outcome.summary["clients_counted"] == outcome.summary["clients"] == 4
    assert outcome.summary["client_test_images"] == sum(map(len, CLINICS.values()))
    assert outcome.summary["rounds"] == 1
    assert federation.deployment.exit_code("stranger", timeout=30) != 0


def test_a_clinic_joins_later_and_another_is_forgotten(
    deploy: Any,
    images: Federation,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c = list(CLINICS)[:3]
    federation = deploy({name: images.node_config(name) for name in (a, b)})
    deployment = federation.deployment
    outcome = federation.run("it", wait_for=2, **SETTINGS)
    assert outcome.completed, outcome.output
    assert_model_of(outcome.directory, images, [a, b])

    def fed3r(command: str, *arguments: str) -> str:
        """Run the command where the app is; return what it prints."""
        assert main([command, str(outcome.directory), *arguments]) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(deployment.stage(PROJECT))
    deployment.start_supernode(c, images.node_config(c))
    assert "3 of 3" in fed3r("add", deployment.address)
    assert_model_of(outcome.directory, images, [a, b, c])
    forgotten = fed3r("forget", b, deployment.address)
    assert re.search(rf"forgotten clients +1: {b}", forgotten)
    assert_model_of(outcome.directory, images, [a, c])
    assert "WRONG" not in fed3r("audit")
