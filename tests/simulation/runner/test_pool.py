"""Worker processes: none that dies takes another along, none outlives its runner."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from simulation.runner.pool import Pool

PROJECT = Path(__file__).parents[3]
TASKS = """
import os, pathlib, signal, dataclasses

@dataclasses.dataclass(frozen=True)
class Dying:
    title: str
    log: pathlib.Path
    how: str

    def execute(self, worker_context, report):
        print("alive")
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "raises":
            raise ValueError("a reason")
        report(1, 1)
"""


class Notes:
    def __init__(self):
        self.ends, self.advances = {}, []

    def started(self, task):
        pass

    def advanced(self, task, done, total):
        self.advances.append((task.title, done, total))

    def finished(self, task, sentence):
        self.ends[task.title] = sentence

    def tick(self):
        pass


def test_a_run_that_dies_takes_nothing_with_it(tmp_path, monkeypatch):
    (tmp_path / "dying_tasks.py").write_text(TASKS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import dying_tasks

    kinds = ("killed", "raises", "well")
    tasks = [dying_tasks.Dying(how, tmp_path / f"{how}.log", how) for how in kinds]
    notes = Notes()
    with Pool(jobs=1, cores=1) as pool:
        pool.run(tasks, notes)
    assert notes.ends["killed"].startswith("Its process was ended by signal 9.")
    assert notes.ends["raises"] == "ValueError: a reason"
    assert notes.ends["well"] == ""
    assert notes.advances == [("well", 1, 1)]
    assert (tmp_path / "raises.log").read_text().startswith("alive\nTraceback")


RUNNER = """
import dataclasses, pathlib, sys, time
from simulation.runner.pool import Pool

@dataclasses.dataclass(frozen=True)
class Long:
    title: str
    log: pathlib.Path

    def execute(self, worker_context, report):
        worker_context.resources.callback(self.log.with_name("stopped").touch)
        self.log.with_name("begun").touch()
        time.sleep(60)

class Silent:
    started = advanced = finished = tick = lambda *_: None

if __name__ == "__main__":
    with Pool(jobs=1, cores=1) as pool:
        pool.run([Long("long", pathlib.Path(sys.argv[1]))], Silent())
"""


def test_a_killed_runner_takes_its_workers_with_it(tmp_path):
    script, log = tmp_path / "runner.py", tmp_path / "long.log"
    script.write_text(RUNNER)
    process = subprocess.Popen(
        [sys.executable, str(script), str(log)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        # The worker has the same output: it ends when both are gone.
        process.communicate(timeout=10)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (tmp_path / "stopped").exists()  # what the worker has started is stopped
