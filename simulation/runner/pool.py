"""Tasks over worker processes: in parallel, and undisturbed by one that dies."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import Protocol

from simulation.runner.tasks import Task
from simulation.runner.worker import STOP_SECONDS, Advance, Outcome, serve

_TICK_SECONDS = 0.25
# Read when a library is loaded, so they have to be there when a worker starts.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Watcher(Protocol):
    """Who is told what happens."""

    def started(self, task: Task) -> None:
        """Note that a task was given to a worker."""

    def advanced(self, task: Task, done: int, total: int) -> None:
        """Note how far a task is."""

    def finished(self, task: Task, sentence: str) -> None:
        """Note that a task is through; a sentence says why it failed."""

    def tick(self) -> None:
        """Note that a moment has passed."""


class Pool:
    """Worker processes that are started when needed and stopped at the end.

    Parameters
    ----------
    jobs : int
        Workers at most.
    cores : int
        Processors to share among them.
    share_threads : bool
        Whether each worker's libraries get their share of the processors; False
        leaves that to what the worker starts.
    """

    def __init__(self, jobs: int, cores: int, share_threads: bool = True) -> None:
        self._jobs = jobs
        self._cores = cores
        self._threads = max(1, cores // jobs)
        self._share_threads = share_threads
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.join()
        self._idle, self._busy = [], {}

    def run(self, tasks: Iterable[Task], watcher: Watcher, jobs: int = 0) -> None:
        """Do all tasks, so many at a time; those that fail don't stop the others."""
        waiting = deque(tasks)
        while waiting or self._busy:
            while waiting and len(self._busy) < (jobs or self._jobs):
                self._give(waiting.popleft(), watcher)
            for connection in wait(list(self._busy), _TICK_SECONDS):
                assert isinstance(connection, Connection)
                self._listen(connection, watcher)
            watcher.tick()

    def _give(self, task: Task, watcher: Watcher) -> None:
        worker = self._idle.pop() if self._idle else self._start()
        worker.connection.send(task)
        self._busy[worker.connection] = worker, task
        watcher.started(task)

    def _start(self) -> _Worker:
        environment = dict(os.environ)
        # Threads that wait in a loop for one another starve the other workers.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if self._share_threads:
            os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(self._threads)))
        try:
            return _Worker(self._threads, self._cores)
        finally:
            os.environ.clear()
            os.environ.update(environment)

    def _listen(self, connection: Connection, watcher: Watcher) -> None:
        worker, task = self._busy[connection]
        try:
            word = connection.recv()
        except (EOFError, OSError):
            del self._busy[connection]
            watcher.finished(task, worker.why_it_ended())
            return
        if isinstance(word, Advance):
            watcher.advanced(task, word.done, word.total)
            return
        assert isinstance(word, Outcome)
        del self._busy[connection]
        self._idle.append(worker)
        watcher.finished(task, word.sentence)


class _Worker:
    """A process and the connection to it."""

    def __init__(self, threads: int, cores: int) -> None:
        # A fresh interpreter: a copy of this one would share torch's threads.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, threads, cores), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the connection

    def why_it_ended(self) -> str:
        """Return a sentence on a process that ended before its task."""
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            hint = " Is there enough memory?" if code == -9 else ""
            return f"Its process was ended by signal {-code}.{hint}"
        return f"Its process ended early, with exit code {code}."

    def join(self) -> None:
        """Wait for the end of the process; force it where that takes too long."""
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()
