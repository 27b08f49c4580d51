"""Worker processes: none that dies takes another along, none outlives its runner."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from simulation.runner.display import Display
from simulation.runner.pool import Pool
from simulation.runner.store import Store
from simulation.runner.tasks import Task

PROJECT = Path(__file__).parents[3]
# What workers import by name.
DYING = """
import os, signal

def killed(resources, report):
    os.kill(os.getpid(), signal.SIGKILL)

def raises(resources, report):
    print("alive", flush=True)
    raise ValueError("a reason")

def well(resources, report):
    report(1, 1)
"""


class Notes(Display):
    """A display that remembers what it was told."""

    def __init__(self, store: Store, total: int) -> None:
        super().__init__(store, total)
        self.ends: dict[str, str] = {}
        self.advances: list[tuple[str, int, int]] = []

    def advanced(self, task: Task, done: int, total: int) -> None:
        super().advanced(task, done, total)
        self.advances.append((task.title, done, total))

    def finished(self, task: Task, sentence: str) -> None:
        super().finished(task, sentence)
        self.ends[task.title] = sentence


def test_a_run_that_dies_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    dying = pytest.importorskip("dying")
    kinds = ("killed", "raises", "well")
    tasks = [Task(how, tmp_path / f"{how}.log", getattr(dying, how)) for how in kinds]
    notes = Notes(Store(tmp_path), len(tasks))
    with Pool(jobs=1) as pool:
        pool.run(tasks, notes)
    assert notes.ends["killed"].startswith("Its process was ended by signal 9.")
    assert notes.ends["raises"] == "ValueError: a reason"
    assert notes.ends["well"] == ""
    assert notes.advances == [("well", 1, 1)]
    assert [task.title for task, _ in notes.failures] == ["killed", "raises"]
    assert (tmp_path / "raises.log").read_text().startswith("alive\nTraceback")


RUNNER = """
import pathlib, sys, time
from simulation.runner.display import Display
from simulation.runner.pool import Pool
from simulation.runner.store import Store
from simulation.runner.tasks import Task

HERE = pathlib.Path(sys.argv[1])

def wait_long(resources, report):
    resources.callback((HERE / "stopped").touch)
    (HERE / "begun").touch()
    time.sleep(60)

if __name__ == "__main__":
    with Pool(jobs=1) as pool:
        task = Task("long", HERE / "long.log", wait_long)
        pool.run([task], Display(Store(HERE), 1))
"""


def wait_for(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path.exists()


def test_a_killed_runner_takes_its_workers_with_it(tmp_path: Path) -> None:
    script = tmp_path / "runner.py"
    script.write_text(RUNNER)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        start_new_session=True,
    )
    try:
        wait_for(tmp_path / "begun", 60)
        process.kill()
        process.wait()
        wait_for(tmp_path / "stopped", 10)  # what the worker has started is stopped
        deadline = time.monotonic() + 10
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:  # until the worker is gone, too
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            raise AssertionError("The worker has outlived its runner.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
