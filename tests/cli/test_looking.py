"""`fed3r` alone, `fed3r --version`, `fed3r ls` and `fed3r show`."""

import argparse
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fed3r_app import cli
from fed3r_app.cli.overview import GROUPS
from fed3r_app.config import DEFAULTS
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.provenance import read_parts, recorded_part, summary_block, typed


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path))
    monkeypatch.delenv("FED3R_COMMAND", raising=False)
    return tmp_path


def make_run(folder: Path, name: str, accuracy: float = 0.9, **settings: Any) -> Any:
    run = RunDirectory.open(str(folder), name, resume=False)
    run.write_config({**DEFAULTS, "run-name": name, **settings})
    with recorded_part(run, "cpu", 0):
        run.append_metrics({"round": 1, "accuracy": accuracy / 2})
        summary = {"method": "fed3r", "dataset": "digits", "status": "complete"}
        counts = {"accuracy": accuracy, "clients": 4, "clients_counted": 3}
        about = {"provenance": summary_block(run)}
        run.write_summary({**summary, **counts, **about})
    return run


def fail_run(folder: Path, name: str, reason: str) -> Any:
    run = RunDirectory.open(str(folder), name, resume=False)
    run.write_config(DEFAULTS)
    with pytest.raises(ValueError), recorded_part(run, "cpu", 0):
        run.append_metrics({"round": 1, "accuracy": 0.25})
        raise ValueError(reason)
    return run


def fed3r(capsys: pytest.CaptureFixture[str], *words: Any) -> list[str]:
    """Return the lines that a command prints."""
    assert cli.main(list(map(str, words))) == 0
    return capsys.readouterr().out.splitlines()


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [
        each
        for each in cli._parser()._actions
        if isinstance(each, argparse._SubParsersAction)
    ]
    return dict(action.choices)


def test_the_command_alone_prints_every_command_in_its_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = fed3r(capsys)
    assert lines[0].startswith("usage: fed3r")
    listed = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert sorted(listed) == sorted(subcommands())
    headings = [line[:-1] for line in lines if line.endswith(":")]
    assert set(headings) - {"options"} == set(GROUPS)


def test_a_command_is_used_by_its_own_name() -> None:
    usage = subcommands()["show"].format_usage()
    assert usage.startswith("usage: fed3r show [-h]")


def test_the_version_names_what_decides_without_importing_it() -> None:
    script = (
        "import sys\nfrom fed3r_app.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'flwr'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for number in (platform.python_version(), version("torch"), version("flwr")):
        assert number in done.stdout


def test_the_list_says_how_each_run_ended(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "whole")
    fail_run(results, "failed", "The data is wrong.")
    killed = fail_run(results, "killed", "x")
    killed.provenance_path.write_text(
        "\n".join(killed.provenance_path.read_text().splitlines()[:2]) + "\n"
    )
    lines = fed3r(capsys, "ls")
    rows = {cells(line)[0]: cells(line) for line in lines[3:6]}
    assert rows["whole"][1:6] == ["complete", "fed3r", "digits", "90.0 %", "3 of 4"]
    assert rows["failed"][1:5] == ["failed", "fed3r", "digits", "25.0 %"]
    assert rows["killed"][1] == "interrupted"
    assert lines[-1] == "- failed: The data is wrong."
    assert fed3r(capsys, "ls", results) == lines


def test_a_list_without_runs_is_no_error(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fed3r(capsys, "ls") == [f"No runs in {results}."]
    assert cli.main(["ls", str(results / "nowhere")]) == 1
    assert "RESULTS must be a folder" in capsys.readouterr().err


def test_a_run_is_meant_by_its_name_and_a_misspelt_one_is_guessed(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "first")
    assert cli.main(["audit", "first"]) == 1
    assert "must hold the statistics of a run" in capsys.readouterr().err
    for name, *more in (["audit"], ["solve"], ["forget", "7"], ["predict", "x.jpg"]):
        assert cli.main([name, "frist", *more]) == 1
        assert "Did you mean 'first'?" in capsys.readouterr().err


def test_the_list_does_not_wait_for_torch(results: Path) -> None:
    make_run(results, "a")
    script = (
        "import sys; from fed3r_app.cli import main\n"
        "assert main(['ls']) == main(['show', 'a', 'a']) == 0\n"
        "assert not {'torch', 'flwr', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_two_runs_are_compared_settings_first(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "a", 0.9, seed=1, alpha=0.5)
    make_run(results, "b", 0.8, seed=2, alpha=0.5, method="fedncm")
    lines = fed3r(capsys, "show", "a", results / "b")
    settings = lines[: lines.index("Outcome")]
    assert [cells(line) for line in settings[2:] if line] == [
        ["a", "b"],
        ["method", '"fed3r"', '"fedncm"'],
        ["seed", "1", "2"],
    ]
    outcome = [cells(line) for line in lines[lines.index("Outcome") :]]
    assert ["accuracy", "90.0 %", "80.0 %"] in outcome
    assert ["clients counted", "3 of 4", "3 of 4"] in outcome


def test_a_run_that_failed_can_be_compared(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "a")
    fail_run(results, "b", "The data is wrong.")
    outcome = [cells(line) for line in fed3r(capsys, "show", "a", "b")]
    assert ["status", "complete", "failed: The data is wrong."] in outcome
    assert ["accuracy", "90.0 %", "25.0 %"] in outcome


def test_one_run_that_failed_is_one_sentence_with_the_reason(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_run(results, "b", "The data is wrong.")
    assert cli.main(["show", "b"]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "must hold a finished run, got one that failed (The data is wrong)" in said


def test_the_settings_of_a_run_and_what_made_it_are_shown(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "a", seed=5, resume=True)
    rows = [cells(line) for line in fed3r(capsys, "show", "a", "--settings")]
    assert ["seed", "5"] in rows and ["device", "cpu"] in rows
    assert ["flwr", version("flwr")] in rows
    assert not [row for row in rows if row[0] in ("run-name", "resume", "alpha")]


def test_a_run_names_the_command_that_was_typed_and_no_later_one(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FED3R_CACHE_DIR", str(results / "cache"))
    tiny = ["backbone=pixels", "image-size=8", "dataset=digits-small", "run-name=x"]
    words = ["simulate", "--clients", "2", *tiny]
    assert cli.main(words) == 0
    (part,) = read_parts(RunDirectory(results / "x"))
    assert part.about["command"] == f"fed3r {' '.join(words)}"
    assert part.status == "complete"
    assert "FED3R_COMMAND" not in os.environ


def test_a_superlink_does_not_hand_its_own_command_on() -> None:
    with typed("fed3r", ["superlink", "folder"]):
        assert "FED3R_COMMAND" not in os.environ


def test_the_picture_of_a_run_can_be_drawn_as_vectors(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(results, "a")
    file = results / "paper.svg"
    lines = fed3r(capsys, "show", "a", "--picture", file)
    assert lines[-1] == f"Picture  {file}"
    assert "<!-- fed3r on digits, 4 clients -->" in file.read_text()
    assert cli.main(["show", "a", "--picture", str(results / "paper.txt")]) == 1
    assert "must end with .png, .svg, .pdf" in capsys.readouterr().err
    assert cli.main(["show", "a", "a", "--picture", str(file)]) == 1
