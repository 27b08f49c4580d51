"""``python -m simulation``: exit codes that can be relied on, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fed3r_app.cli import main as fed3r
from fed3r_app.deployment import processes
from fed3r_app.deployment.processes import INSTALLED_APP, app_settings, stage_app
from simulation import __main__ as simulation
from simulation.engines.superlink import private_superlink

Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a folder that holds the app."""
    stage_app(INSTALLED_APP, tmp_path)
    return subprocess.Popen(
        [sys.executable, "-m", "simulation", *arguments],
        cwd=tmp_path,
        env={**os.environ, "FED3R_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[bytes]:
    """Return the processes whose Flower home is in a folder."""
    wanted, found = f"FLWR_HOME={folder}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes():
                found.append((path.parent / "cmdline").read_bytes())
        except OSError:
            continue  # it has just ended, or is somebody else's
    return found


def test_a_command_that_is_not_known_is_refused(tmp_path: Path) -> None:
    process = start(tmp_path, "fly")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "flwr-run" in output


def test_fed3r_has_the_same_commands(capsys: Capsys, tmp_path: Path) -> None:
    show = ["show", "immunity-digits", "--output", str(tmp_path)]
    assert simulation.main(show) == fed3r(["experiments", *show]) == 0
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert fed3r(["bench", "teleport"]) == 2
    assert fed3r(["experiments", "show", "immunity-digit"]) == 2


def test_an_app_that_a_wheel_installed_is_staged(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    site = stage_app(INSTALLED_APP, tmp_path / "site")
    packaged = site / "fed3r_app" / "pyproject.toml"
    (site / "pyproject.toml").rename(packaged)
    monkeypatch.setattr(processes, "INSTALLED_APP", site)
    monkeypatch.setattr(processes, "_PACKAGE", packaged.parent)
    staged = stage_app(site, tmp_path / "app")
    assert app_settings(staged) == app_settings(INSTALLED_APP)
    assert (staged / "strategies" / "fed3r.py").is_file()
    assert not (staged / "simulation").exists()


@pytest.fixture
def superlink(tmp_path: Path, monkeypatch: Patch) -> MagicMock:
    """A SuperLink whose user presses Ctrl-C, and this process in an empty folder."""
    superlink = MagicMock()
    superlink.return_value.__enter__.return_value.run.side_effect = KeyboardInterrupt
    monkeypatch.setattr(simulation, "private_superlink", superlink)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return superlink


def test_ctrl_c_ends_a_run_without_a_traceback(
    superlink: MagicMock, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app]")
    for times in (1, 2):  # the folder is free again
        assert simulation.main(["flwr-run"]) == 130
        assert superlink.call_count == times


@pytest.mark.parametrize("content", [None, "[project]", "no TOML"])
def test_a_run_outside_of_the_project_is_refused_in_a_sentence(
    superlink: MagicMock, tmp_path: Path, capsys: Capsys, content: str | None
) -> None:
    if content:
        (tmp_path / "pyproject.toml").write_text(content)
    assert simulation.main(["flwr-run"]) == 1
    assert f"{tmp_path} must be the app's folder, got" in capsys.readouterr().err
    superlink.assert_not_called()
    assert not (tmp_path / ".flwr").exists()


@pytest.mark.parametrize("settings", ["alpha 0.1", "metod=lda", "nonsense", "x.toml"])
def test_what_flower_would_drop_is_refused(
    superlink: MagicMock, tmp_path: Path, capsys: Capsys, settings: str
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app]")
    assert simulation.main(["flwr-run", "--run-config", settings]) == 2
    hint, _ = capsys.readouterr().err.splitlines()
    assert "fed3r simulate --engine ray" in hint
    superlink.assert_not_called()


def test_superlinks_in_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    with private_superlink(tmp_path) as one, private_superlink(tmp_path) as other:
        assert one.home != other.home
        for superlink in (one, other):
            superlink.superlink.check()
    assert not processes_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["superlink.log"]


@pytest.mark.slow
def test_two_runs_on_ray_in_one_folder_at_once(tmp_path: Path) -> None:
    """Also far from the project's folder: the app is the installed one."""
    command = [sys.executable, "-m", "fed3r_app.cli", "simulate", "--engine", "ray"]
    command += ["--clients", "3", "backbone=pixels", "image-size=8"]
    started = [
        subprocess.Popen(
            [*command, f"run-name={name}"],
            cwd=tmp_path,
            env={**os.environ, "FED3R_CACHE_DIR": str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "other")
    ]
    for process in started:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    results = tmp_path / "results"
    assert {path.name for path in results.iterdir()} == {"one", "other", "latest"}
    for name in ("one", "other", "latest"):
        assert (results / name / "summary.json").is_file()
    assert not processes_of(tmp_path)
    assert [path.name for path in (tmp_path / ".flwr").iterdir()] == ["superlink.log"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run_config", "code"),
    [
        ('backbone="pixels" image-size=8', 0),
        ('backbone="pixels" image-size=8 max-client-samples=1', 1),
        ("ridge-lambda=-1", 2),
        ("ridge-lamda=1", 2),
    ],
)
def test_the_exit_code_is_zero_only_if_the_run_completed(
    tmp_path: Path, run_config: str, code: int
) -> None:
    process = start(tmp_path, "flwr-run", "--run-config", run_config)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    assert (tmp_path / "results" / "latest" / "summary.json").exists() == (code == 0)
    assert not processes_of(tmp_path)


@pytest.mark.slow
def test_a_command_that_is_terminated_takes_its_processes_along(tmp_path: Path) -> None:
    process = start(tmp_path, "flwr-run", "--run-config", 'backbone="pixels"')
    deadline = time.monotonic() + 120
    while not any(b"raylet" in name for name in processes_of(tmp_path)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    # As after Ctrl-C: the run has ended, and said what of it is saved.
    assert process.returncode == 128 + signal.SIGINT
    assert not processes_of(tmp_path)
