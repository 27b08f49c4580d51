"""The command `fed3r`, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main
from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.runs.curves import plot_curves
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import SavedModel, save_model

SIZE = 8


def fed3r(*arguments: Any, cwd: Any = None, **environment: Any) -> Any:
    """Run the command in a process of its own, and check that it ends politely."""
    done = subprocess.run(
        [sys.executable, "-m", "fed3r_app.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stderr
    return done


def save_run(
    folder: Path, name: str = "a", accuracy: float = 0.96, **changes: Any
) -> Any:
    """Make a run whose model tells dark from bright by the pixels of an image."""
    run = RunDirectory.open(str(folder), name, resume=False)
    run.append_metrics({"round": 1, "accuracy": accuracy})
    run.write_summary({"method": "fed3r", "dataset": "shades", "accuracy": accuracy})
    plot_curves(run.read_metrics(), run.curves_path, name)
    W = torch.zeros(SIZE**2 + 1, 3, dtype=torch.float64)
    W[:-1, 1] = 1 / SIZE**2  # bright: the mean grey value, in [0, 1]
    W[-1, 0] = 0.5  # dark: always a half
    W[-1, 2] = 9.0  # would always win, but nobody had any
    model = {
        "classifier": Classifier(W, torch.tensor([True, True, False])),
        "class_names": ("dark", "bright", "unseen"),
        "method": "fed3r",
        "ridge_lambda": 0.01,
        "backbone": load_backbone(BackboneSpec("pixels", "none", SIZE)).spec,
        "feature_map": FeatureMap(SIZE**2, intercept=True),
    }
    save_model(run.model_path, SavedModel(**{**model, **changes}))
    return run


def save_image(path: Path, grey: Any, mode: str = "RGB") -> Any:
    Image.fromarray(np.full((12, 20, 3), grey, dtype=np.uint8)).convert(mode).save(path)
    return path


def test_show_prints_the_table_and_where_the_picture_is(tmp_path: Path) -> None:
    run = save_run(tmp_path)
    done = fed3r("show", run.path)
    assert done.returncode == 0 and done.stderr == ""
    assert "accuracy  96.0 %" in done.stdout
    assert f"Picture  {run.curves_path}" in done.stdout


def test_a_reader_that_has_seen_enough_is_not_an_error(tmp_path: Path) -> None:
    run = save_run(tmp_path)
    command = [sys.executable, "-m", "fed3r_app.cli", "show", str(run.path)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_show_takes_the_latest_run_by_default(tmp_path: Path) -> None:
    save_run(tmp_path / "results", "a")
    save_run(tmp_path / "results", "b", accuracy=0.5)
    save_run(tmp_path / "elsewhere", "c", accuracy=0.25)
    done = fed3r("show", cwd=tmp_path, FED3R_OUTPUT_DIR="")
    assert done.returncode == 0 and "50.0 %" in done.stdout
    assert str(tmp_path / "results" / "b") in done.stdout
    done = fed3r("show", cwd=tmp_path, FED3R_OUTPUT_DIR="elsewhere")
    assert done.returncode == 0 and "25.0 %" in done.stdout


def test_show_without_a_finished_run_is_one_sentence(tmp_path: Path) -> None:
    done = fed3r("show", cwd=tmp_path, FED3R_OUTPUT_DIR="")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"No runs in {tmp_path / 'results'}. `fed3r simulate`" in done.stderr


def test_show_does_not_wait_for_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from fed3r_app.cli import main; main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules"
    )
    arguments = [sys.executable, "-c", script, "show", str(save_run(tmp_path).path)]
    assert subprocess.run(arguments, stdout=subprocess.DEVNULL).returncode == 0


def test_predict_prints_a_line_for_each_image(tmp_path: Path) -> None:
    run = save_run(tmp_path / "runs")
    dark = save_image(tmp_path / "d ä.png", 51)
    bright = save_image(tmp_path / "b.jpg", 204, mode="L")
    done = fed3r("predict", run.path, dark, bright)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{dark}: dark (0.500), bright (0.200)",
        f"{bright}: bright (0.800), dark (0.500)",
    ]


def test_images_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    run = save_run(tmp_path / "runs")
    good = save_image(tmp_path / "good.png", 204)
    cut = save_image(tmp_path / "cut.png", 204)
    cut.write_bytes(cut.read_bytes()[:50])
    text = tmp_path / "text.png"
    text.write_text("no image")
    missing = tmp_path / "missing.png"
    done = fed3r("predict", run.path, cut, missing, text, tmp_path, good, "--top", "1")
    assert done.returncode == 1
    assert done.stdout == f"{good}: bright (0.800)\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    for line, path in zip(lines, [cut, missing, text, tmp_path], strict=True):
        assert line.startswith("fed3r: ") and str(path) in line


# From here on in this process: torch takes seconds to import.


def test_a_relative_path_starts_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "results")
    save_image(tmp_path / "x.png", 0)
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "results/latest", "x.png", "--top=9"]) == 0
    assert capsys.readouterr().out == "x.png: dark (0.500), bright (0.000)\n"


def test_other_weights_than_the_models_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(
        tmp_path,
        backbone=BackboneSpec("pixels", "none", SIZE, digest="0123456789abcdef"),
    )
    assert main(["predict", str(run.path), "x.png"]) == 1
    error = capsys.readouterr().err
    assert "must be those that the model was made with (digest 0123456789ab)" in error


@pytest.mark.parametrize("content", [None, b"", b"damaged" * 100])
def test_a_missing_or_damaged_model_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    run = RunDirectory(tmp_path)
    if content is not None:
        run.model_path.write_bytes(content)
    assert main(["predict", str(tmp_path), "x.png"]) == 1
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert str(tmp_path) in output.err


@pytest.mark.parametrize(
    "arguments",
    [["dance"], ["predict"], ["predict", "a"], ["predict", "a", "b", "--top=0"]],
)
def test_wrong_usage_ends_with_2(
    arguments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: fed3r" in capsys.readouterr().err


def test_a_run_to_follow_takes_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "127.0.0.1:1", "--follow", "7", "method=lda"]) == 2
    assert "--follow must go without settings" in capsys.readouterr().err


def test_a_command_that_is_misspelt_is_guessed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulat"])
    said = capsys.readouterr().err
    assert said.endswith("'simulat'. Did you mean 'simulate'?\n")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ([], "classify images"),
        (["ls"], "RESULTS"),
        (["show"], "FED3R_OUTPUT_DIR"),
        (["predict"], "--top K"),
    ],
)
def test_help_says_what_to_type(
    command: Any, word: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    output = capsys.readouterr().out
    assert "usage: fed3r" in output and word in output
