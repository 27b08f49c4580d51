"""Runs of version 0.1 are read as 0.1 read them, and come to the same numbers."""

import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fed3r_app import client_app, server_app
from fed3r_app.cli import main as fed3r
from fed3r_app.config import DEFAULTS, RETIRED
from fed3r_app.config.versions import CONFIG_V0_1, OTHER_IN_V0_1
from fed3r_app.data.images import FileImages
from fed3r_app.features.extraction import extract_features
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import Ledger
from fed3r_app.runs.model_file import load_model, saved_backbone
from simulation.engines.inline import run_inline
from tests.harness.grid import SpyGrid
from tests.harness.runs import AppRuns

HERE = Path(__file__).parent / "v0_1"
SAID = json.loads((HERE / "scores.json").read_text())
NUMBERS = json.loads((HERE.parent / "numbers.json").read_text())
CHANGES = [
    (run, what)
    for run in SAID
    for what in ("solve", "solve-1", "forget")
    if what in SAID[run]
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path))


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """Copy a run of 0.1 to where it may change."""

    def make(name: str) -> Any:
        made = NUMBERS["made_with"]
        if name == "random-features-conv" and any(
            metadata.version(package) != made[package]
            for package in ("torch", "torchvision")
        ):
            pytest.skip("random weights are those of other versions of torch")
        return Path(shutil.copytree(HERE / name, tmp_path / name))

    return make


def values_of(text: str) -> Any:
    """Return the right column of a table, without what only 0.1 printed."""
    lines = [line for line in text.splitlines() if "  " in line.strip()]
    return [
        line.strip().split("  ")[-1].strip()
        for line in lines
        if not line.startswith(("best on", "Run ", "Model"))
    ]


def assert_model_as(run: Any, stem: Any) -> None:
    """Compare the model of a run with what 0.1 came to."""
    model = load_model(run / "model.safetensors")
    path = HERE / "expected" / f"expected-{stem}.safetensors"
    expected = load_model(path)
    torch.testing.assert_close(model.W, expected.W, rtol=1e-6, atol=1e-9)
    assert torch.equal(model.present, expected.present)
    assert model.class_names == expected.class_names
    then = json.loads(path.with_suffix(".json").read_text())
    now = RunDirectory(run).read_summary()
    for key in ("accuracy", "clients_counted", "num_samples", "rounds", "status"):
        assert now[key] == pytest.approx(then["summary"][key], abs=1e-9)
    entries = Ledger(run / "ledger.jsonl").entries()
    digests = {(e.client, e.digest) for e in entries if e.client}
    assert {(client, digest) for client, _, digest in then["ledger"]} == digests


@pytest.mark.parametrize("name", SAID)
def test_images_have_the_same_scores(copy: Any, name: str) -> None:
    model = load_model(copy(name) / "model.safetensors")
    backbone = saved_backbone(model)
    for image, scores in SAID[name]["scores"].items():
        images = FileImages(HERE / "images", [image], [0])
        rows = torch.zeros(1, dtype=torch.int64).numpy()
        Z = extract_features(backbone, images, rows, device=torch.device("cpu"))
        expected = [-torch.inf if score is None else score for score in scores]
        torch.testing.assert_close(
            model.scores(Z)[0].double(),
            torch.tensor(expected, dtype=torch.float64),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("name", SAID)
def test_show_predict_and_audit_say_the_same(
    copy: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = copy(name), SAID[name]
    assert fed3r(["show", str(run)]) == 0
    assert values_of(capsys.readouterr().out) == values_of(said["show"]["stdout"])
    images = [str(HERE / "images" / image) for image in said["scores"]]
    assert fed3r(["predict", str(run), *images]) == 0
    now = [line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    then = said["predict"]["stdout"].splitlines()
    assert now == [line.split(": ", 1)[1] for line in then]
    assert fed3r(["audit", str(run)]) == said["audit"]["exit_code"]
    verdicts = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert verdicts == [
        line.split()[0] for line in said["audit"]["stdout"].splitlines()
    ]


@pytest.mark.parametrize(("name", "what"), CHANGES)
def test_solving_and_forgetting_come_to_the_same(
    copy: Any, name: str, what: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = copy(name), SAID[name]
    options = {
        "solve": ["solve", str(run)],
        "solve-1": ["solve", str(run), "--ridge-lambda", "1"],
        "forget": ["forget", str(run), said.get("forgotten_client", "")],
    }[what]
    assert fed3r(options) == said[what]["exit_code"]
    if said[what]["exit_code"] == 0:
        assert_model_as(run, f"{name}-{what}")
        assert fed3r(["audit", str(run)]) == said[what]["audit"]["exit_code"]


def test_another_method_leaves_how_images_are_read(copy: Any) -> None:
    run = RunDirectory(copy("closed-form-pixels"))
    before, recipe = run.read_config(), run.read_recipe()
    assert fed3r(["solve", str(run.path), "--method", "fedncm"]) == 0
    assert run.read_config() == before | {"method": "fedncm"}
    assert run.read_recipe() == recipe
    assert fed3r(["audit", str(run.path)]) == 0


@pytest.mark.parametrize(
    ("name", "clients", "changes"),
    [("closed-form-lambda", 6, {}), ("fine-tuned-pixels", 4, {"rounds": 3})],
)
def test_a_resumed_run_ends_as_it_did(
    copy: Any, name: str, clients: Any, changes: Any
) -> None:
    run = copy(name)
    config = RunDirectory(run).read_config() | {"resume": True, **changes}
    run_inline(server_app.app, client_app.app, clients, config)
    assert_model_as(run, f"{name}-resumed")


def resume_local_nodes(run: Path, images: Path, **settings: Any) -> Any:
    """Resume the run of 0.1 whose clients have folders, and return its weights."""
    config = RunDirectory(run).read_config() | {"resume": True} | settings
    grid = SpyGrid(seed=None)
    for number, name in enumerate(("clinic-a", "clinic-b", "clinic-c", "clinic-10")):
        node = {"data-path": str(images / name), "client-id": name}
        grid.connect(101 + 7 * number, node, config)
    AppRuns(run.parent, {}).on(grid, config)
    return load_model(run / "model.safetensors").W


def test_nodes_with_their_own_images_join_a_run_of_0_1(copy: Any) -> None:
    run = copy("local-nodes")
    resume_local_nodes(run, HERE / "images-of-nodes")
    assert_model_as(run, "local-nodes-resumed")


def test_a_resumed_run_reads_images_as_0_1_did(copy: Any, tmp_path: Path) -> None:
    """What comes later is read as what came before, at the same size."""
    weights = []
    for orientation in (1, 6):
        images = tmp_path / f"images-{orientation}"
        shutil.copytree(HERE / "images-of-nodes", images)
        exif = Image.Exif()
        exif[0x0112] = orientation
        for path in sorted((images / "clinic-10").rglob("*.png")):
            with Image.open(path) as image:
                image.load()
                image.save(path, exif=exif)
        run = copy("local-nodes")
        # As somebody who doesn't name the size has it.
        weights.append(resume_local_nodes(run, images, **{"image-size": "auto"}))
        model = load_model(run / "model.safetensors").backbone
        assert (model.recipe, model.image_size) == (1, 8)
        shutil.rmtree(run)
    assert torch.equal(*weights)


def test_every_key_has_the_value_that_0_1_gave_it() -> None:
    then = {k: v for k, v in NUMBERS["defaults"].items() if k not in RETIRED}
    assert {k: CONFIG_V0_1[k] for k in then} == then
    assert CONFIG_V0_1.keys() == DEFAULTS.keys() == then.keys() | OTHER_IN_V0_1.keys()


def test_a_key_that_a_file_of_0_1_lacks_has_the_value_of_0_1(
    copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(copy("closed-form-pixels"))
    stored = json.loads(run.config_path.read_text())
    del stored["temperature"]
    run.config_path.write_text(json.dumps(stored))
    monkeypatch.setitem(DEFAULTS, "temperature", 7.0)  # as if it changed
    assert run.read_config()["temperature"] == 0.1


def newer_json(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def newer_lines(path: Path) -> None:
    path.write_text('{"format": 99, "kind": "x"}\n' + path.read_text())


def newer_tensors(path: Path) -> None:
    data = path.read_bytes()
    kind = b"version 1" if b"version 1" in data[:4096] else b"version 2"
    path.write_bytes(data.replace(kind, b"version 9", 1))


@pytest.mark.parametrize(
    ("file", "change", "command"),
    [
        ("config.json", newer_json, "solve"),
        ("summary.json", newer_json, "show"),
        ("ledger.jsonl", newer_lines, "audit"),
        ("model.safetensors", newer_tensors, "audit"),
        ("statistics.safetensors", newer_tensors, "solve"),
    ],
)
def test_what_a_newer_version_wrote_is_refused(
    copy: Any, file: Any, change: Any, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy("closed-form-pixels")
    change(run / file)
    assert fed3r([command, str(run)]) == 1
    assert "was written by a newer version" in capsys.readouterr().err
