"""Ctrl-C and SIGTERM in the middle of a run: it ends where it stands, and saves.

A run in the main thread is interrupted at once, as Python does it. In Flower's
simulation the ServerApp has a thread of its own, which no signal reaches: there it is
asked to stop, and looks up between two replies.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from strategies.flower_internals import before_exit

_ASKED = threading.Event()
_IN_STEP = threading.Event()  # while something changes that has to stay whole
_LONGEST_SECONDS = 60.0  # to save what a run has: gigabytes, at most


class Stopped(BaseException):
    """A signal has ended the run; what it has is to be saved on the way out."""


def check_stopped() -> None:
    """Raise Stopped if the run is asked to stop: once, it saves on its way out."""
    if _ASKED.is_set():
        _ASKED.clear()
        raise Stopped


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put a signal off to the end of this block: what it changes is whole then."""
    if _IN_STEP.is_set():  # the block around this one sees to it
        yield
        return
    _IN_STEP.set()
    try:
        yield
    finally:
        _IN_STEP.clear()
    check_stopped()


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped in this block at a SIGINT or SIGTERM, once."""
    if threading.current_thread() is threading.main_thread():
        with _signals():
            yield
        return
    has_ended = threading.Event()

    def stop() -> None:
        _ASKED.set()
        has_ended.wait(_LONGEST_SECONDS)

    cancel = before_exit(stop)
    try:
        yield
    finally:
        cancel()
        has_ended.set()
        _ASKED.clear()


@contextmanager
def _signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, _: object) -> None:
        for each in numbers:  # a second one must not disturb the saving
            signal.signal(each, signal.SIG_IGN)
        _ASKED.set()
        if not _IN_STEP.is_set():
            check_stopped()

    earlier = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        _ASKED.clear()
        for number, handler in earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
