"""Progress of what takes longer than a few seconds, with the time that is left.

A bar in the terminal of a command, else a line of log now and then. A command that
shows the log of another process makes bars of its lines.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from fed3r_app.console import logs
from fed3r_app.words import roughly

if TYPE_CHECKING:
    from rich import progress as rich_progress
    from rich.console import Console

_FIRST_SECONDS = 5.0  # until the first line: what is quicker needs none
_SHARE = 0.05  # a pause between two lines, of the time since the beginning
_LINE = re.compile(r"(.+): (\d+) of (\d+)(?:, about .+ left)?")


class Progress:
    """Reports how much of something is done, to its end.

    A context manager where it may end early: what was reached then is said, too.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._last = time.monotonic()
        self._first: int | None = None  # done before, or meanwhile
        self._done = self._said = (0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._said not in ((0, 0), self._done):
            self._say()
        BARS.remove(self._what)

    def __call__(self, done: int, total: int) -> None:
        """Record that so many are done."""
        self._done = done, total
        if self._first is None:
            self._first, self._began = done, time.monotonic()
        if BARS.update(self._what, done, total):
            return
        pause = max(_FIRST_SECONDS, _SHARE * (time.monotonic() - self._began))
        is_end = done == total and self._said not in ((0, 0), self._done)
        if is_end or (done < total and time.monotonic() - self._last > pause):
            self._say()

    def _say(self) -> None:
        self._last, self._said = time.monotonic(), self._done
        done, total = self._done
        new = done - (self._first or 0)
        left = ""
        if 0 < new and done < total:
            seconds = (time.monotonic() - self._began) / new * (total - done)
            left = f", about {roughly(seconds)} left"
        # Flower's own `log` without Flower, which `fed3r predict` does without.
        text = f"{self._what}: {done} of {total}{left}"
        logging.getLogger("flwr").info("%s", text)


class _Bars:
    """The bars on the terminal, while any has not reached its end."""

    def __init__(self) -> None:
        self._shown: rich_progress.Progress | None = None
        self._tasks: dict[str, rich_progress.TaskID] = {}

    def update(self, what: str, done: int, total: int) -> bool:
        """Move a bar, new if need be; return False where there is no terminal."""
        console = logs.terminal()
        if console is None:
            return False
        if done >= total:
            self.remove(what)
            return True
        if self._shown is None:
            self._shown = make_bars(console)
            self._shown.start()
        if what not in self._tasks:
            self._tasks[what] = self._shown.add_task(what, total=total, note="")
        self._shown.update(self._tasks[what], completed=done, total=total)
        return True

    def remove(self, what: str = "") -> None:
        """Remove a bar, or all."""
        for each in [what] if what else list(self._tasks):
            task = self._tasks.pop(each, None)
            if self._shown is not None and task is not None:
                self._shown.remove_task(task)
        if self._shown is not None and not self._tasks:
            self._shown.stop()
            self._shown = None


BARS = _Bars()


@contextmanager
def shown(*, verbose: bool = False) -> Iterator[None]:
    """Show what this process logs, and its progress; Flower's lines if verbose.

    For commands: what Flower starts calls ``logs.configure``.
    """
    from rich.console import Console

    with logs.directed_to(Console(), verbose=verbose):
        try:
            yield
        finally:
            BARS.remove()


def make_bars(console: Console) -> rich_progress.Progress:
    """Return what shows bars on a terminal."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,  # what has ended has a line of its own
        # Without a terminal the bars would only be printed once, at the end.
        disable=not console.is_terminal,
    )


def show_line(line: logs.Line) -> None:
    """Show a line that another process has logged, as a bar where it is one's."""
    match = _LINE.fullmatch(line.message)
    if not (match and BARS.update(match[1], int(match[2]), int(match[3]))):
        logs.show(line)
