"""Ctrl-C in the middle of `fed3r simulate`: what it prints resumes the run."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.deployment import PROJECT
from tests.harness.pixels import assert_close
from tests.harness.runs import Outcome

_SETTINGS = "clients-per-round=1 partition=iid ridge-lambda=0.5 upload-dtype=float64"
FED3R = [sys.executable, "-m", "fed3r_app.cli"]


class Shell:
    """Calls `fed3r` in a folder, with caches and results of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "FED3R_CACHE_DIR": str(folder / "cache"),
        }
        self._environment.pop("FED3R_OUTPUT_DIR", None)

    def start(self, command: str) -> subprocess.Popen[str]:
        words = shlex.split(command)
        assert words.pop(0) == "fed3r"
        return subprocess.Popen(
            [*FED3R, *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, path: Path, lines: int) -> None:
        """Wait until a file has more lines than that."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if path.exists() and len(path.read_text().splitlines()) > lines:
                return
            time.sleep(0.05)
        raise TimeoutError(f"{path} has not {lines} lines.")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["", "--engine ray --cpus-per-client 2 "])
def test_the_printed_command_resumes_the_run(tmp_path: Path, engine: str) -> None:
    shell = Shell(tmp_path)
    process = shell.start(f"fed3r simulate --clients 20 {engine}{_SETTINGS}")
    results = tmp_path / "results" / "latest"
    shell.wait_for(results / "ledger.jsonl", 3)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 130, output + error
    counted = len(Outcome(results).snapshot.contributions)
    assert 3 <= counted < 20
    (line,) = error.splitlines()
    assert f"the statistics of {counted} clients" in line
    command = re.search(r"run again: (fed3r .*)", line)
    assert command, line

    process = shell.start(command[1])
    output, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (0, "")
    resumed = Outcome(results.resolve())
    assert resumed.summary["clients_counted"] == 20
    accepted = [entry for entry in resumed.ledger if entry.outcome == "accepted"]
    assert len(accepted) == 20  # each was asked once, before or after
    assert output.count("clients counted  ") == 1  # the summary
    whole = shell.start(f"fed3r simulate --clients 20 {_SETTINGS} run-name=whole")
    output, error = whole.communicate(timeout=300)
    assert whole.returncode == 0, error
    expected = Outcome(tmp_path / "results" / "whole")
    assert_close(resumed.weights, expected.weights)
