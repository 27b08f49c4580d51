"""Processes that end together, and with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

# Threads that wait in a loop for one another, OpenMP's and OpenBLAS's, make small
# products many times slower as soon as anything else runs, such as the clients beside a
# server. Read when the libraries are loaded.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
# The first process of a group: its pipe closes when this process ends, even by kill -9,
# and then it ends the group.
_WATCHDOG = ["sh", "-c", "read _; kill -KILL 0"]


class ProcessGroup:
    """Processes of which none outlives this one, however it ends.

    ``environment`` holds their environment variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def id(self) -> int:
        """Id of the group, once a process has been started."""
        assert self._watchdog is not None
        return self._watchdog.pid

    def start(
        self, command: list[str], log: IO[bytes] | int | None = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to a log."""
        if self._watchdog is None:
            self._watchdog = subprocess.Popen(
                _WATCHDOG, stdin=subprocess.PIPE, process_group=0
            )
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log is not None else None,
            process_group=self.id,
        )
        self._processes.append(process)
        return process

    def stop(self, seconds: float) -> None:
        """End all processes, by force after so many seconds."""
        if self._watchdog is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if signal_group(self.id, number):
                self._wait_until_gone(seconds)
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog, self._processes = None, []

    def _wait_until_gone(self, seconds: float) -> None:
        assert self._watchdog is not None
        deadline = time.monotonic() + seconds
        while signal_group(self.id, 0) and time.monotonic() < deadline:
            for process in (self._watchdog, *self._processes):
                process.poll()  # takes leave of a child that has ended
            time.sleep(0.05)


def signal_group(group: int, number: int) -> bool:
    """Send a signal (0: none) to a process group; return whether it is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Turn signals to terminate into SystemExit meanwhile, so that `finally` runs."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(each, lambda number, _: sys.exit(128 + number))
        for each in signals
    ]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
