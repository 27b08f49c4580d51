"""``fed3r demo``: a deployment, a run and its result, and nothing is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.cli import main

# The digits as features that cost nothing, also where photographs are installed.
QUICK = ["--nodes", "2", "--run-config", 'backbone="pixels" image-size=8']
CONNECTED = "2 nodes connected"


class Demo:
    """A demo in a process of its own, started in an empty folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.results, self.scratch = folder / "results", folder / "tmp"
        self.scratch.mkdir()
        variables = {"TMPDIR": str(self.scratch), "FED3R_OUTPUT_DIR": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "fed3r_app.cli", "demo", *QUICK, *options],
            env=os.environ | variables,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, words: str) -> None:
        """Read the output up to some words."""
        assert self.process.stdout is not None
        assert any(words in line for line in self.process.stdout), words

    def end(self) -> str:
        """Return the rest of the output once the process has ended."""
        return self.process.communicate(timeout=240)[0]

    @property
    def children(self) -> list[str]:
        """The command lines of what it has started, in whichever process group."""
        return [
            (path / "cmdline").read_text().replace("\0", " ")
            for path in Path("/proc").glob("[0-9]*")
            if path.name != str(self.process.pid) and str(self.scratch) in home(path)
        ]


def home(process: Path) -> str:
    """Return the FLWR_HOME of a process; "" if it has none, or has ended."""
    try:
        variables = (process / "environ").read_text().split("\0")
    except OSError:
        return ""
    return next((each for each in variables if each.startswith("FLWR_HOME=")), "")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        started.append(Demo(tmp_path, *options))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.communicate()


@pytest.mark.slow
def test_one_command_gives_a_result_and_leaves_nothing_else(start: Any) -> None:
    demo = start("--tls")
    output = demo.end()
    assert demo.process.returncode == 0, output
    assert "TLS, only registered nodes" in output
    summary = json.loads((demo.results / "latest" / "summary.json").read_text())
    assert summary["clients_counted"] == 2
    assert summary["client_test_images"] > 300, "nodes have test images"
    assert f"fed3r predict {(demo.results / 'latest').resolve()}" in output
    assert not demo.children
    assert not list(demo.scratch.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_demo_that_is_stopped_leaves_nothing(
    start: Any, number: Any, code: Any
) -> None:
    demo = start()
    demo.wait_for(CONNECTED)
    assert demo.children
    demo.process.send_signal(number)
    output = demo.end()
    assert demo.process.returncode == code, output
    assert not demo.children
    assert not list(demo.scratch.iterdir())
    assert not demo.results.exists() or not list(demo.results.glob("*/model*"))


@pytest.mark.slow
def test_what_a_demo_started_ends_with_it_even_by_kill_9(start: Any) -> None:
    demo = start()
    demo.wait_for("SuperLink at")
    assert demo.children
    demo.process.kill()
    demo.process.wait()
    deadline = time.monotonic() + 10
    while demo.children:
        assert time.monotonic() < deadline, demo.children
        time.sleep(0.1)


@pytest.mark.parametrize("nodes", ["0", "11"])
def test_the_number_of_nodes_is_checked_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str
) -> None:
    assert main(["demo", "--nodes", nodes, "--folder", str(tmp_path / "demo")]) == 1
    assert f"--nodes must be from 1 to 10, got {nodes}" in capsys.readouterr().err
