"""Worker processes: none that dies takes another along, none outlives its runner."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


def test_a_run_that_dies_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    dying = importlib.import_module("dying")
    kinds = ("killed", "raises", "well")
    tasks = [Task(how, tmp_path / f"{how}.log", getattr(dying, how)) for how in kinds]
    display, advances = Display(Store(tmp_path), len(tasks)), []
    monkeypatch.setattr(display, "advanced", lambda *each: advances.append(each))
    with Pool(jobs=1) as pool:
        pool.run(tasks, display)
    failures = {task.title: sentence for task, sentence in display.failures}
    assert failures.keys() == {"killed", "raises"}
    assert failures["killed"].startswith("Its process was ended by signal 9.")
    assert failures["raises"] == "ValueError: a reason"
    assert advances == [(tasks[2], 1, 1)]
    assert (tmp_path / "raises.log").read_text().startswith("alive\nTraceback")


RUNNER = """
import os, pathlib, sys, time
from simulation.runner.display import Display
from simulation.runner.pool import Pool
from simulation.runner.store import Store
from simulation.runner.tasks import Task

HERE = pathlib.Path(sys.argv[1])

def wait_long(resources, report):
    resources.callback((HERE / "stopped").touch)
    (HERE / "worker").write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    with Pool(jobs=1) as pool:
        task = Task("long", HERE / "long.log", wait_long)
        pool.run([task], Display(Store(HERE), 1))
"""


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_runner_takes_its_workers_with_it(tmp_path: Path) -> None:
    script, worker = tmp_path / "runner.py", tmp_path / "worker"
    script.write_text(RUNNER)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        start_new_session=True,
    )
    try:
        wait_until(lambda: worker.exists() and worker.read_text(), 60)
        process.kill()
        process.wait()
        # A process that has ended has no command line, whoever takes leave of it.
        command = Path("/proc", worker.read_text(), "cmdline")
        wait_until(lambda: not (command.exists() and command.read_text()), 10)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "stopped").exists()  # what the worker has started is stopped
