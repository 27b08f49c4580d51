"""Tasks over worker processes: in parallel, and undisturbed by one that dies.

A worker is a fresh interpreter that executes one task after another. What it sends back
is a pair (done, total) while a task advances, and in the end a message: why the task
failed, or "".
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.deployment.process_group import PATIENT_THREADS
from fed3r_app.errors import RunError
from simulation.runner.tasks import Task, TaskError, available_cores

if TYPE_CHECKING:
    from simulation.runner.display import Display

_STOP_SECONDS = 15.0  # to stop what a worker has started, before it is killed
_TICK_SECONDS, _REPORT_SECONDS = 1.0, 0.2  # often enough for the eye, cheap
# Read when a library is loaded, so they have to be there when a worker starts.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# A copy of this process would share torch's threads.
_CONTEXT = multiprocessing.get_context("spawn")


class Pool:
    """At most ``jobs`` worker processes, started when needed, stopped at the end.

    The libraries of each get their share of the processors, unless ``share_threads`` is
    False: that leaves it to what the worker starts.
    """

    def __init__(self, jobs: int, share_threads: bool = True) -> None:
        self._jobs = jobs
        self._variables = {**PATIENT_THREADS, **os.environ}
        if share_threads:
            threads = str(max(1, available_cores() // jobs))
            self._variables |= dict.fromkeys(_THREAD_VARIABLES, threads)
        self._processes: dict[Connection, SpawnProcess] = {}
        self._idle: list[Connection] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(_STOP_SECONDS)
            process.kill()
            process.join()

    def run(self, tasks: Iterable[Task], display: Display, jobs: int = 0) -> None:
        """Execute all tasks, so many at a time; one that fails stops no other."""
        waiting, busy = deque(tasks), dict[Connection, Task]()
        while waiting or busy:
            while waiting and len(busy) < (jobs or self._jobs):
                task = waiting.popleft()
                worker = self._idle.pop() if self._idle else self._start()
                worker.send(task)
                busy[worker] = task
                display.started(task)
            ready = wait(list(busy), _TICK_SECONDS)
            for worker in [each for each in busy if each in ready]:
                received = self._receive(worker)
                if isinstance(received, str):
                    display.ended(busy.pop(worker), received)
                else:
                    display.advanced(busy[worker], *received)
            display.tick()

    def _start(self) -> Connection:
        """Return the connection to a new worker."""
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        before = dict(os.environ)
        os.environ.update(self._variables)  # which the worker inherits
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()  # so that the end of the process is the end of the connection
        self._processes[ours] = process
        return ours

    def _receive(self, worker: Connection) -> str | tuple[int, int]:
        try:
            received: str | tuple[int, int] = worker.recv()
        except (EOFError, OSError):
            return _why_it_ended(self._processes.pop(worker))
        if isinstance(received, str):
            self._idle.append(worker)
        return received


def _why_it_ended(process: SpawnProcess) -> str:
    """Return why a process ended before its task."""
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"Its process ended early, with exit code {code}."
    hint = " Is there enough memory?" if code == -signal.SIGKILL else ""
    return f"Its process was ended by signal {-code}.{hint}"


def _serve(connection: Connection) -> None:
    """Execute the tasks that come through a connection until this process is ended."""
    # Ctrl-C reaches every process of the terminal: the runner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_the_runner, daemon=True).start()
    with ExitStack() as resources:
        while True:
            task: Task = connection.recv()
            _print_to(task.log)
            connection.send(_outcome(task, resources, connection))


def _leave(number: int, _: object) -> None:
    """End this process and what it has started, undisturbed by further signals."""
    signal.signal(signal.SIGTERM, lambda number, _: None)
    sys.exit(128 + number)


def _end_with_the_runner() -> None:
    """Wait for the end of the runner, however it came, and end this process too.

    A task looks at its connection only now and then: until it did, it would write into
    a folder that the next runner takes for its own.
    """
    runner, main = multiprocessing.parent_process(), threading.main_thread()
    assert runner is not None and main.ident is not None
    runner.join()
    signal.pthread_kill(main.ident, signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _print_to(path: Path) -> None:
    """Append what this process and its children print from now on to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(file.fileno(), number)


def _outcome(task: Task, resources: ExitStack, connection: Connection) -> str:
    """Execute a task; return why it failed, or "".

    Messages of our own errors stand for themselves; others get the name of their type.
    """
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            connection.send((done, total))

    try:
        task.execute(resources, report)
        return ""
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip() or "no reason was given"
        ours = isinstance(error, (RunError, TaskError))
        return text if ours else f"{type(error).__name__}: {text}"
    finally:
        sys.stdout.flush()
