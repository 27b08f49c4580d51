"""The files of a run: names, refusals, and what survives an interruption."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.runs.directory import RunDirectory, output_directory

LINES = [{"round": 1, "accuracy": 0.5}, {"round": 2}, {"round": 3, "accuracy": 0.75}]


def open_run(folder: Path | str, name: str = "a", resume: bool = False) -> Any:
    return RunDirectory.open(str(folder), name, resume)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return open_run(tmp_path)


def test_the_output_directory_is_the_option_the_variable_or_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FED3R_OUTPUT_DIR", raising=False)
    assert output_directory() == tmp_path / "results"
    monkeypatch.setenv("FED3R_OUTPUT_DIR", "elsewhere")
    assert output_directory() == tmp_path / "elsewhere"
    assert output_directory("x/../option") == tmp_path / "option"


def test_a_run_gets_an_absolute_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # an empty folder can be used
        run = open_run("deep/er")
        assert run.path == tmp_path / "deep" / "er" / "a"
        assert run.path.is_dir()


def test_runs_without_a_name_are_named_after_the_time_and_never_share(
    tmp_path: Path,
) -> None:
    runs = [open_run(tmp_path, "") for _ in range(5)]
    names = {run.path.name for run in runs}
    assert len(names) == 5
    stamp = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d)?")
    assert all(map(stamp.fullmatch, names)), names


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", ".hidden", "/tmp/x", "a\\b", "latest", " ", "a\0b"]
)
def test_a_name_that_is_not_a_plain_folder_name_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="run-name must be a plain folder name"):
        open_run(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_run_is_not_written_to(run: Any, tmp_path: Path) -> None:
    run.write_config({"seed": 0})
    message = re.escape(
        f"run-name = 'a': {run.path} already holds a run. "
        "Choose another run-name or set resume = true."
    )
    with pytest.raises(ValueError, match=message):
        open_run(tmp_path)


def test_resuming_needs_a_name_and_a_run_that_began(run: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run-name must name the run .* got ''"):
        open_run(tmp_path, "", resume=True)
    with pytest.raises(ValueError, match=r"must hold a run .* no config\.json"):
        open_run(tmp_path, resume=True)
    run.write_config({})
    assert open_run(tmp_path, resume=True) == run


def test_a_misspelt_run_to_resume_leaves_nothing_behind(
    run: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="run-name = 'b'"):
        open_run(tmp_path, "b", resume=True)
    assert not (tmp_path / "b").exists()
    assert os.readlink(tmp_path / "latest") == "a"


def test_an_output_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"output-dir must be a folder .*file"):
        open_run(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_closed_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=r"output-dir must be .*Permission denied"):
        open_run(tmp_path)
    tmp_path.chmod(0o700)


def test_latest_points_to_the_last_run_also_after_the_folder_moves(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "before"
    open_run(folder, "a")
    open_run(folder, "b")
    moved = folder.rename(tmp_path / "after")
    assert (moved / "latest").resolve() == moved / "b"
    assert sorted(path.name for path in moved.iterdir()) == ["a", "b", "latest"]


def test_a_folder_called_latest_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    assert open_run(tmp_path).path.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "latest"]


def test_metrics_come_back_line_by_line(run: Any) -> None:
    assert run.read_metrics() == []
    for number, line in enumerate(LINES, start=1):
        run.append_metrics(line)
        assert run.read_metrics() == LINES[:number]


def test_a_line_cut_anywhere_is_passed_over_and_then_replaced(run: Any) -> None:
    for line in LINES[:2]:
        run.append_metrics(line)
    whole = run.metrics_path.read_bytes()
    start = whole.index(b"\n", whole.index(b"\n") + 1) + 1  # after the first line
    for cut in range(start, len(whole) - 1):
        run.metrics_path.write_bytes(whole[:cut])
        assert run.read_metrics() == LINES[:1]
        run.append_metrics(LINES[2])
        assert run.read_metrics() == [LINES[0], LINES[2]]


def test_damage_inside_the_metrics_is_named(run: Any) -> None:
    run.metrics_path.write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl line 2 must be a JSON"):
        run.read_metrics()


def test_metrics_after_the_round_to_resume_from_are_dropped(run: Any) -> None:
    for line in LINES:
        run.append_metrics(line)
    run.drop_metrics_after(2)
    run.append_metrics({"round": 3, "again": True})
    assert run.read_metrics() == [*LINES[:2], {"round": 3, "again": True}]


def test_values_are_written_as_any_json_reader_takes_them(run: Any) -> None:
    def refuse(constant: Any) -> None:
        raise AssertionError(constant)

    run.write_summary(
        {
            "nan": float("nan"),
            "infinity": [float("inf")],
            "numpy": np.float32(0.5),
            "torch": torch.tensor(3),
            "path": Path("x"),
            "tuple": ("ä", None, True),
        }
    )
    text = run.summary_path.read_text(encoding="utf-8")
    expected: dict[str, Any] = {
        **{"format": 2, "nan": None, "infinity": [None], "numpy": 0.5, "torch": 3},
        **{"path": "x", "tuple": ["ä", None, True]},
    }
    assert json.loads(text, parse_constant=refuse) == expected
    assert {"format": 2, **run.read_summary()} == expected


def test_a_missing_summary_says_what_may_have_happened(run: Any) -> None:
    with pytest.raises(FileNotFoundError, match="Is this the folder of a run"):
        run.read_summary()
    run.append_metrics(LINES[0])
    with pytest.raises(FileNotFoundError, match=r"Did the run fail.*metrics\.jsonl"):
        run.read_summary()


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[1]", b"\xff\xfe"])
def test_a_damaged_summary_is_named(run: Any, content: Any) -> None:
    run.summary_path.write_bytes(content)
    with pytest.raises(ValueError, match=r"summary\.json must be a JSON object"):
        run.read_summary()


def test_class_counts_come_back_and_go_with_the_model(run: Any) -> None:
    counts = [(0, 0, 5), (1, 0, 2)]
    run.write_confusion(["cat", "dog"], counts)
    assert run.read_confusion() == (["cat", "dog"], counts)
    run.write_confusion(["cat", "dog"], [])
    assert not run.confusion_path.exists()


@pytest.mark.parametrize("counts", ["[[0, 2, 1]]", "[[0]]", "7", '[["a", 0, 1]]'])
def test_damaged_class_counts_are_refused(run: Any, counts: str) -> None:
    text = f'{{"format": 2, "classes": ["cat", "dog"], "counts": {counts}}}'
    run.confusion_path.write_text(text)
    with pytest.raises(ValueError, match="must hold classes and counts"):
        run.read_confusion()
