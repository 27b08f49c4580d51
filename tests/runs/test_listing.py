"""The list of runs, and how each part of a run begins and ends."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import fed3r_app
from fed3r_app.runs import provenance
from fed3r_app.runs.directory import LATEST, RunDirectory
from fed3r_app.runs.listing import describe_run, find_run, list_runs
from fed3r_app.runs.provenance import read_parts, recorded_part, summary_block

CONFIG = {"method": "fed3r", "dataset": "digits", "seed": 3}
SUMMARY = {
    **{"method": "fed3r", "dataset": "digits", "status": "complete"},
    **{"accuracy": 0.9, "clients": 12, "clients_counted": 10, "rounds": 4},
}
COMPATIBILITY = Path(__file__).parents[1] / "compatibility" / "v0_1"


def begin(folder: Path, name: str) -> RunDirectory:
    run = RunDirectory.open(str(folder), name, resume=False)
    run.write_config(CONFIG)
    return run


def finish(run: RunDirectory, **changes: Any) -> None:
    run.write_summary({**SUMMARY, "provenance": summary_block(run), **changes})


def finished(folder: Path, name: str, **changes: Any) -> RunDirectory:
    run = begin(folder, name)
    with recorded_part(run, "cpu", 3):
        run.append_metrics({"round": 1, "accuracy": 0.1})
        finish(run, **changes)
    return run


def test_a_finished_run_is_listed_with_its_outcome(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    finished(tmp_path, "a")
    (listed,) = list_runs(tmp_path)
    assert before <= listed.began <= datetime.now(UTC)
    assert (listed.name, listed.state, listed.reason) == ("a", "complete", "")
    assert (listed.method, listed.dataset, listed.accuracy) == ("fed3r", "digits", 0.9)
    assert (listed.clients_counted, listed.clients, listed.rounds) == (10, 12, 4)
    assert listed.parts == 1


def test_a_run_under_way_shows_its_last_round(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    with run.locked(), recorded_part(run, "cpu", 3):
        run.append_metrics({"round": 1, "clients_counted": 2, "accuracy": 0.5})
        run.append_metrics({"round": 2, "clients_counted": 4, "accuracy": None})
        with run.metrics_path.open("a") as file:
            file.write('{"round": 3, "accur')  # being written
        listed = describe_run(run)
    assert (listed.state, listed.rounds, listed.accuracy) == ("running", 2, 0.5)
    assert (listed.method, listed.clients_counted) == ("fed3r", 4)


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    script = (
        "import sys; from pathlib import Path\n"
        "from fed3r_app.runs.directory import RunDirectory\n"
        "from fed3r_app.runs.listing import describe_run\n"
        "print(flush=True)\n"
        "while True: describe_run(RunDirectory(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(run.path)]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert watcher.stdout and watcher.stdout.readline()
        for _ in range(20):
            with run.locked():
                pass
    finally:
        watcher.kill()
        watcher.wait()


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    with pytest.raises(ValueError, match="wrong"), recorded_part(run, "cpu", 3):
        raise ValueError("The data is\n wrong.")
    listed = describe_run(run)
    assert (listed.state, listed.reason) == ("failed", "The data is wrong.")


def test_a_run_that_was_stopped_or_killed_is_interrupted(tmp_path: Path) -> None:
    stopped, killed = begin(tmp_path, "stopped"), begin(tmp_path, "killed")
    with pytest.raises(KeyboardInterrupt), recorded_part(stopped, "cpu", 3):
        raise KeyboardInterrupt
    script = (
        "import os, sys; from pathlib import Path\n"
        "from fed3r_app.runs.directory import RunDirectory\n"
        "from fed3r_app.runs.provenance import recorded_part\n"
        "run = RunDirectory(Path(sys.argv[1]))\n"
        "with run.locked(), recorded_part(run, 'cpu', 3): os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, str(killed.path)])
    assert len(read_parts(killed)) == 1
    assert {run.state for run in list_runs(tmp_path)} == {"interrupted"}


def test_a_partial_run_is_not_called_failed(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    with pytest.raises(RuntimeError), recorded_part(run, "cpu", 3):
        finish(run, status="partial")
        raise RuntimeError("3 of 4 clients were counted.")
    listed = describe_run(run)
    assert (listed.state, listed.reason) == ("partial", "3 of 4 clients were counted.")


def test_a_resumed_run_has_the_state_of_its_last_part(tmp_path: Path) -> None:
    run = finished(tmp_path, "a")
    with pytest.raises(ValueError, match="no"), recorded_part(run, "cpu", 3):
        raise ValueError("no")
    listed = describe_run(run)
    assert (listed.state, listed.accuracy, listed.parts) == ("failed", 0.9, 2)
    with recorded_part(run, "cpu", 3):
        finish(run, accuracy=0.95)
    listed = describe_run(run)
    assert (listed.state, listed.accuracy, listed.parts) == ("complete", 0.95, 3)
    block = run.read_summary()["provenance"]
    assert isinstance(block, dict)
    assert block["part"] == 3
    said = [(part["part"], part["status"]) for part in block["earlier"]]
    assert said == [(1, "complete"), (2, "failed")]


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', "\x00\xff"])
def test_a_damaged_run_disturbs_no_other(
    tmp_path: Path, name: str, content: str
) -> None:
    finished(tmp_path, "whole")
    (finished(tmp_path, "damaged").path / name).write_text(content)
    found = {run.name: run for run in list_runs(tmp_path)}
    assert found["whole"].state == "complete"
    assert found["damaged"].state == "damaged"
    assert name in found["damaged"].reason and "\n" not in found["damaged"].reason


def test_damaged_lines_of_metrics_and_parts_are_passed_over(tmp_path: Path) -> None:
    run = begin(tmp_path, "a")
    run.metrics_path.write_text('{"format": 2, "kind": "metrics"}\nx\n')
    run.provenance_path.write_text("x\ny\n")
    assert describe_run(run).state == "interrupted"


def test_links_and_other_folders_are_no_runs(tmp_path: Path) -> None:
    finished(tmp_path / "elsewhere", "b")
    finished(tmp_path / "results", "a")
    (tmp_path / "results" / "experiments").mkdir()
    (tmp_path / "results" / "notes.txt").write_text("x")
    (tmp_path / "results" / "b").symlink_to(tmp_path / "elsewhere" / "b")
    assert (tmp_path / "results" / LATEST).is_symlink()
    assert [run.name for run in list_runs(tmp_path / "results")] == ["a"]


def test_the_last_run_comes_first(tmp_path: Path) -> None:
    for number, name in enumerate("cab"):
        run = finished(tmp_path, name)
        os.utime(run.config_path, (number, number))
        run.provenance_path.unlink()
    assert [run.name for run in list_runs(tmp_path)] == ["b", "a", "c"]


@pytest.mark.parametrize("name", ["closed-form-pixels", "fine-tuned-pixels"])
def test_runs_of_0_1_are_listed(name: str) -> None:
    listed = describe_run(RunDirectory(COMPATIBILITY / name))
    then = json.loads((COMPATIBILITY / name / "summary.json").read_text())
    assert (listed.state, listed.accuracy) == (then["status"], then["accuracy"])
    assert listed.clients_counted == then["clients_counted"]


def test_a_run_is_found_by_path_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path))
    run = finished(tmp_path, "first")
    assert find_run(run.path) == find_run("first") == find_run(LATEST) == run
    with pytest.raises(FileNotFoundError, match=r"got 'frist'.*mean 'first'\?"):
        find_run("frist")


def test_a_folder_of_something_else_does_not_hide_the_run_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "results"))
    run = finished(tmp_path / "results", "photos")
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_run("photos") == run
    assert find_run("./photos") == RunDirectory(tmp_path / "photos")


def test_a_thousand_runs_are_listed_in_less_than_two_seconds(tmp_path: Path) -> None:
    run = finished(tmp_path, "0")
    files = {path.name: path.read_bytes() for path in run.path.iterdir()}
    for number in range(1, 1000):
        (tmp_path / str(number)).mkdir()
        for name, content in files.items():
            (tmp_path / str(number) / name).write_bytes(content)
    began = time.process_time()
    assert len(list_runs(tmp_path)) == 1000
    assert time.process_time() - began < 2
    assert all(run.state == "complete" for run in list_runs(tmp_path))


def test_provenance_names_what_decides_and_not_the_machine() -> None:
    about = provenance.describe()
    text = json.dumps(about)
    assert os.uname().nodename not in text
    versions = about["versions"]
    assert isinstance(versions, dict)
    assert versions.keys() == {"fed3r", "Python", "torch", "flwr"}
    assert versions["flwr"].startswith("1.41")
    assert datetime.fromisoformat(str(about["began"])).tzinfo == UTC


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that the code lies in a clone of its own; give its folder."""
    root = tmp_path / "clone"
    (root / "fed3r_app").mkdir(parents=True)
    file = root / "fed3r_app" / "__init__.py"
    file.write_text("")
    monkeypatch.setattr(fed3r_app, "__file__", str(file))
    provenance._code.cache_clear()
    yield root
    provenance._code.cache_clear()


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_of_a_clone_is_named_and_whether_it_was_changed(clone: Path) -> None:
    assert provenance.describe()["code"] is None  # not a clone yet
    git(clone, "init", "--quiet")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "x")
    commit = git(clone, "rev-parse", "HEAD")
    for text, dirty in (("", False), ("changed", True)):
        (clone / "fed3r_app" / "__init__.py").write_text(text)
        provenance._code.cache_clear()
        about = provenance.describe()
        assert about["code"] == {"commit": commit, "dirty": dirty}


def test_neither_a_missing_nor_a_hanging_git_stops_a_run(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / ".git").mkdir()
    monkeypatch.setattr(provenance, "_GIT_SECONDS", 0.2)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", str(bin_))
    assert provenance.describe()["code"] is None
    provenance._code.cache_clear()
    (bin_ / "git").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(9)\n")
    (bin_ / "git").chmod(0o755)
    began = time.monotonic()
    assert provenance.describe()["code"] is None
    assert time.monotonic() - began < 5
