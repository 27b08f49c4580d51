"""Time and memory of a piece of code, with a known number of threads."""

from __future__ import annotations

import gc
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

T = TypeVar("T")
NUM_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
_STATUS = Path("/proc/self/status")
_BEGAN = time.monotonic()


@dataclass(frozen=True)
class Measured:
    """What a call in a process of its own returned, and what it took."""

    value: Any
    seconds: float
    extra_bytes: int
    """Peak memory above what the process held before the call."""
    peak_bytes: int
    """Peak memory of the whole process, Python and torch included."""


def announce(step: str) -> None:
    """Say what is measured next: some steps take minutes."""
    seconds = time.monotonic() - _BEGAN
    print(f"[{seconds:5.0f} s] {step} ...", file=sys.stderr, flush=True)


def best_seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """Return the shortest time of some calls: the one least disturbed by others."""
    return min(timed(function)[1] for _ in range(repeats))


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its seconds."""
    began = time.perf_counter()
    value = function()
    return value, time.perf_counter() - began


class Clock(dict[str, list[float]]):
    """The seconds of all calls of each step."""

    def __call__(self, step: str, function: Callable[[], T]) -> T:
        """Return what a call returns; note its seconds."""
        value, seconds = timed(function)
        self.setdefault(step, []).append(seconds)
        return value


@contextmanager
def threads(number: int = NUM_THREADS) -> Iterator[None]:
    """Give torch and BLAS this many threads each."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)


def measure(function: Callable[..., Any], *arguments: Any, isolated: bool) -> Measured:
    """Call a function and return what it took.

    Parameters
    ----------
    function : callable
        Of a module, so that another process can find it.
    isolated : bool
        In a fresh process, whose peak memory is its own; takes seconds to start.
    """
    if not isolated:
        return _measure(function, arguments)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, function, arguments).result()


def describe_machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    return {
        "processor": _processor(),
        "threads": NUM_THREADS,
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.is_available(),
    }


def _measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Measured:
    with threads():
        gc.collect()
        before = _reset_peak()
        value, seconds = timed(lambda: function(*arguments))
    peak = _peak_bytes()
    return Measured(value, seconds, peak - before, peak)


def _processor() -> str:
    """Return the processor's model, where the system says it."""
    about = Path("/proc/cpuinfo")
    text = about.read_text() if about.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def _reset_peak() -> int:
    """Forget the peak so far, where the system can; return the memory held now."""
    if not _STATUS.exists():
        return _peak_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    return _read_status("VmRSS")


def _peak_bytes() -> int:
    if _STATUS.exists():
        return _read_status("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if platform.system() == "Darwin" else 1024)


def _read_status(key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
