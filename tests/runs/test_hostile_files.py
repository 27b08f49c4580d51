"""Files from somebody else: whatever is in them, a sentence and no traceback."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fed3r_app.cli import main as fed3r
from fed3r_app.files.tensors import read_tensors, write_tensors
from fed3r_app.runs.formats import MODEL
from fed3r_app.runs.model_file import load_model
from tests.harness.pixels import write_image

SAVED = Path(__file__).parents[1] / "compatibility" / "v0_1" / "closed-form-pixels"
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 10**30, 1e308, "\x1b[31m", "", ["x"], {"x": {}}),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model is of today's format, and an image to classify."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(SAVED, folder)
    assert fed3r(["solve", str(folder)]) == 0
    write_image(folder.parent / "image.png", 3)
    return folder


def predict(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return exit code and stderr of a prediction, which may raise nothing."""
    capsys.readouterr()
    code = fed3r(["predict", str(run), str(run.parent / "image.png")])
    return code, capsys.readouterr().err


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to everything in a JSON value."""
    yield path
    inner = value if isinstance(value, dict) else {}
    if isinstance(value, list):
        inner = dict(enumerate(value[:1]))
    for key, below in inner.items():
        yield from places(below, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with another one at a place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def test_whatever_a_model_says_of_itself_is_used_or_refused_in_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "model.safetensors"
    content = path.read_bytes()
    tensors, about = read_tensors(path, MODEL)
    refused = 0
    try:
        assert predict(run, capsys)[0] == 0
        for place in places(about):
            for value in HOSTILE:
                write_tensors(path, MODEL, tensors, replaced(about, place, value))
                code, said = predict(run, capsys)
                assert code == 0 or len(said.splitlines()) == 1, (place, value, said)
                assert "\x1b" not in said
                refused += code
    finally:
        path.write_bytes(content)
    assert refused > 100


@pytest.mark.parametrize(
    "change",
    [
        ("W", torch.zeros(0)),
        ("W", torch.zeros(64, 10, dtype=torch.int32)),
        ("W", torch.zeros(64, 10, dtype=torch.float16)),
        ("present", torch.ones(3, dtype=torch.bool)),
        ("present", torch.ones(10)),
        ("bias", torch.zeros(3, dtype=torch.float64)),
        ("bias", torch.zeros(10, dtype=torch.int8)),
        ("backbone/x", torch.zeros(1)),
        ("more", torch.zeros(1)),
    ],
    ids=lambda change: f"{change[0]} {change[1].dtype} {tuple(change[1].shape)}",
)
def test_tensors_that_do_not_fit_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    path = run / "model.safetensors"
    content = path.read_bytes()
    tensors, about = read_tensors(path, MODEL)
    try:
        write_tensors(path, MODEL, {**tensors, change[0]: change[1]}, about)
        code, said = predict(run, capsys)
    finally:
        path.write_bytes(content)
    assert code == 1 and len(said.splitlines()) == 1


def header(size: int, text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", size) + text + data


def tensor_of(shape: list[int], end: int) -> bytes:
    entry = {"dtype": "F64", "shape": shape, "data_offsets": [0, end]}
    text = json.dumps({"W": entry, "__metadata__": {"kind": MODEL}}).encode()
    return header(len(text), text, b"\0" * 8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header(2**63, b"{}"),
        header(2**31, b"{}"),
        header(99_999_999, b"{" * 1000),
        header(200_000, b'{"a":' * 40_000),
        header(2, b"[]"),
        header(2, b"{}"),
        tensor_of([2**31, 2**31], 8),
        tensor_of([2**62, 4], 8),
        tensor_of([0, 2**60], 0),
        tensor_of([1], 2**60),
        safetensors.torch.save(
            {"W": torch.zeros(1)},
            {"kind": MODEL, "checksum": "", "about": "[" * 100_000},
        ),
    ],
    ids=range(12),
)
def test_absurd_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must hold the model of Fed3R"):
        load_model(path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000])
def test_json_of_any_depth_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    for command in (["solve", str(tmp_path)], ["show", str(tmp_path)]):
        assert fed3r(command) in (1, 2)
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", ["a: " + "[" * 20_000, "a: " + "{b: " * 20_000])
def test_an_experiment_of_any_depth_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert fed3r(["experiments", "run", str(tmp_path / "x.yaml")]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\x7f", "a\u202eb", "a\x85b"])
def test_a_run_name_is_printable(tmp_path: Path, name: str) -> None:
    from fed3r_app.runs.directory import RunDirectory

    with pytest.raises(ValueError, match="run-name must be a plain folder name"):
        RunDirectory.open(str(tmp_path), name, resume=False)
    assert not [*tmp_path.iterdir()]
