"""Time and memory of a piece of code, with a known number of threads."""

from __future__ import annotations

import gc
import logging
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

T = TypeVar("T")
NUM_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_BEGAN = time.monotonic()


@contextmanager
def only_warnings() -> Iterator[None]:
    """Log warnings only: a benchmark prints tables."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class Measured:
    """What a call returned, and what it took.

    The peak of memory is that of the whole process, Python and torch included;
    ``extra_bytes`` of it came on top of what the process held before the call.
    """

    value: Any
    seconds: float
    extra_bytes: int
    peak_bytes: int


def announce(step: str) -> None:
    """Say what is measured next: some steps take minutes."""
    seconds = time.monotonic() - _BEGAN
    print(f"[{seconds:5.0f} s] {step} ...", file=sys.stderr, flush=True)


def timed(function: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return what a call returns, and its seconds."""
    began = time.perf_counter()
    value = function(*arguments)
    return value, time.perf_counter() - began


def best_seconds(
    repeats: int, function: Callable[..., object], *arguments: Any
) -> float:
    """Return the shortest time of some calls: the one least disturbed by others."""
    return min(timed(function, *arguments)[1] for _ in range(repeats))


class Clock(dict[str, list[float]]):
    """The seconds of all calls of each step."""

    def __call__(self, step: str, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a call returns; record its seconds."""
        value, seconds = timed(function, *arguments)
        self.setdefault(step, []).append(seconds)
        return value


@contextmanager
def threads() -> Iterator[None]:
    """Give torch and BLAS as many threads as there are processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        with threadpool_limits(NUM_THREADS):
            yield
    finally:
        torch.set_num_threads(before)


def measure(function: Callable[..., Any], *arguments: Any) -> Measured:
    """Return what a call returned, and its time and memory."""
    with threads():
        gc.collect()
        if _CLEAR.exists():
            _CLEAR.write_text("5")  # forgets the peak so far
        before = _memory("VmRSS")
        value, seconds = timed(function, *arguments)
    peak = _memory("VmHWM")
    return Measured(value, seconds, peak - before, peak)


def _memory(key: str) -> int:
    """Return the memory held (VmRSS) or its peak (VmHWM); without /proc, the peak."""
    if _STATUS.exists():
        found = re.search(rf"^{key}:\s*(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if platform.system() == "Darwin" else 1024)


def describe_machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    about = Path("/proc/cpuinfo")
    text = about.read_text() if about.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "threads": NUM_THREADS,
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.is_available(),
    }
