"""A process that does one task after another, so that a crash takes only itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from simulation.runner.tasks import Task, TaskError, WorkerContext

STOP_SECONDS = 15.0  # to stop what a worker has started, before it is killed
_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Advance:
    """A worker's word on how far its task is."""

    done: int
    total: int


@dataclass(frozen=True)
class Outcome:
    """A worker's last word on a task; the sentence is empty if it went well."""

    sentence: str = ""


def serve(connection: Connection, threads: int, cores: int) -> None:
    """Do the tasks that come through a connection until it is closed."""
    # Ctrl-C reaches every process of the terminal: the runner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_the_runner, daemon=True).start()
    with ExitStack() as resources:
        worker_context = WorkerContext(resources, threads, cores)
        while True:
            try:
                task: Task = connection.recv()
            except EOFError:
                _leave_undisturbed()
                return
            connection.send(_perform(task, worker_context, connection))


def _end_with_the_runner() -> None:
    """Wait for the end of the runner, however it came, and end this process too.

    A task looks at its connection only now and then: until it did, it would go on in a
    folder that the next runner takes for its own.
    """
    runner, main = multiprocessing.parent_process(), threading.main_thread()
    assert runner is not None and main.ident is not None
    runner.join()
    signal.pthread_kill(main.ident, signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(number: int, _: FrameType | None) -> None:
    """End this process, and stop what it has started."""
    _leave_undisturbed()
    sys.exit(128 + number)


def _leave_undisturbed() -> None:
    """Take no notice of further signals: they would cut the stopping short."""
    signal.signal(signal.SIGTERM, lambda number, _: None)


def _perform(
    task: Task, worker_context: WorkerContext, connection: Connection
) -> Outcome:
    """Do a task; return how it went."""
    with _output_to(task.log):
        try:
            task.execute(worker_context, _reporter(connection))
        except Exception as error:
            traceback.print_exc()
            return Outcome(_sentence(error))
    return Outcome()


def _sentence(error: Exception) -> str:
    """Return what to tell a person: our own errors are sentences already."""
    from fed3r_app.errors import RunError

    text = str(error).strip() or "no reason was given"
    if isinstance(error, (RunError, TaskError)):
        return text
    return f"{type(error).__name__}: {text}"


class _reporter:
    """Sends how far a task is, not too often."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        if done == total or time.monotonic() - self._last > _REPORT_SECONDS:
            self._last = time.monotonic()
            self._connection.send(Advance(done, total))


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append everything that this process and its children print to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                (sys.stdout, sys.stderr)[number - 1].flush()
                os.dup2(before, number)
                os.close(before)
