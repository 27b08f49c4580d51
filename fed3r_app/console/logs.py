"""How a process logs: the same lines everywhere, in one place.

In a terminal a line is its message, above the bars of ``progress``. In a pipe and in a
file it begins with the time, has no colours, and names its level where that is not
INFO. Lines of Flower's own are marked, so that whoever shows them can leave them out.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from fed3r_app.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

_LOGGERS = ("flwr", "fed3r_app")  # the app logs through Flower's, some parts have none
_STAMP = "%Y-%m-%d %H:%M:%S"
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LINE = re.compile(
    rf"(?P<stamp>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)  (?P<flower>flwr: )?"
    rf"(?:(?P<level>{_LEVELS}): )?(?P<message>.*)"
)
_FLOWERS = re.compile(rf"({_LEVELS}|WARN)\s*:\s*(.*)")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Line(NamedTuple):
    """A line of log, as it was written to a pipe."""

    time: float
    level: int
    message: str
    is_flowers: bool = False
    owner: str = ""  # whose log it is, where several may be read side by side

    @classmethod
    def parse(cls, text: str) -> Line | None:
        """Return the line in a text that ``str(line)`` made, else None."""
        match = _LINE.fullmatch(text)
        if not match:
            return None
        level = logging.getLevelNamesMapping()[match["level"] or "INFO"]
        stamp = time.mktime(time.strptime(match["stamp"], _STAMP))
        return cls(stamp, level, match["message"], bool(match["flower"]))

    @classmethod
    def parse_flowers(cls, text: str) -> Line | None:
        """Return the line in a text as Flower's programs write it, else None.

        It has no time: it is taken to be of now.
        """
        match = _FLOWERS.fullmatch(text)
        if not match:
            return None
        level = logging.getLevelNamesMapping()[match[1]]
        return cls(time.time(), level, match[2], is_flowers=True)

    @classmethod
    def of(cls, record: logging.LogRecord) -> Line:
        """Return what a record says."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        is_flowers = record.pathname.startswith(_OUTPUT.flowers_folder)
        owner = _OUTPUT.owner
        return cls(record.created, record.levelno, message, is_flowers, owner)

    @property
    def label(self) -> str:
        """What stands before the message: nothing, if it is plain information."""
        level = "" if self.level == logging.INFO else logging.getLevelName(self.level)
        return f"{level}: " if level else ""

    def __str__(self) -> str:
        stamp = time.strftime(_STAMP, time.localtime(self.time))
        flower = "flwr: " if self.is_flowers else ""
        owner = f"{self.owner}: " if self.owner else ""
        return f"{stamp}  {owner}{flower}{self.label}{self.message}"


def without_colours(text: str) -> str:
    """Return a text without what colours it, or moves the cursor, on a terminal."""
    return _COLOURS.sub("", text)


@dataclass
class _Output:
    """Where lines go, and which."""

    console: Console | None = None  # the terminal, if a command writes to one
    stream: Callable[[], TextIO] = lambda: sys.stderr  # without one
    verbose: bool = True  # whether Flower's own are shown
    is_commands: bool = False
    flowers_folder: str = "flwr"  # where the code is that logs them
    owner: str = ""  # see ``owned_by``

    def show(self, line: Line) -> None:
        """Write a line, unless it is one of Flower's that is not wanted."""
        if line.is_flowers and not self.verbose:
            return
        if self.console is None:
            stream = self.stream()
            stream.write(f"{line}\n")
            stream.flush()
            return
        from rich.text import Text

        style = {"WARNING: ": "yellow", "ERROR: ": "red"}.get(line.label, "")
        text = Text.assemble((line.label.capitalize(), style), line.message)
        self.console.print(text, soft_wrap=True)  # a command in it can be copied


_OUTPUT = _Output()


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            # What the app raises is logged by the app, in a sentence: Flower's
            # traceback of it says no more.
            if record.exc_info and isinstance(record.exc_info[1], RunError):
                return
            _OUTPUT.show(Line.of(record))
        except Exception:
            self.handleError(record)


_HANDLER = _Handler(logging.INFO)


def configure() -> None:
    """Let this process log as said above: one that Flower started, or a command."""
    import flwr
    from flwr.common.logger import FLOWER_LOGGER, console_handler

    if _HANDLER in FLOWER_LOGGER.handlers:
        return
    # Flower's own has colours and no times. It knows what goes to the SuperLink.
    FLOWER_LOGGER.removeHandler(console_handler)
    _OUTPUT.stream = lambda: console_handler.stream
    _OUTPUT.flowers_folder = str(Path(flwr.__file__).parent)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(_HANDLER)
    logging.getLogger("fed3r_app").setLevel(logging.INFO)


@contextmanager
def owned_by(name: str) -> Iterator[None]:
    """Begin the lines of this process with a name: that of a node's client."""
    before, _OUTPUT.owner = _OUTPUT.owner, name
    try:
        yield
    finally:
        _OUTPUT.owner = before


@contextmanager
def warnings_in_the_log() -> Iterator[None]:
    """Log warnings of the mathematics as one line each, without their source line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        show = warnings.showwarning

        def log_ours(message: Warning | str, kind: type[Warning], *where: Any) -> None:
            if kind is UserWarning:
                logging.getLogger("flwr").warning("%s", message)
            else:
                show(message, kind, *where)

        warnings.showwarning = log_ours  # type: ignore[assignment]
        yield


@contextmanager
def directed_to(console: Console, *, verbose: bool) -> Iterator[None]:
    """Show what this process logs on its own output; Flower's lines if verbose."""
    configure()
    before = vars(_OUTPUT).copy()
    _OUTPUT.console = console if console.is_terminal else None
    _OUTPUT.stream, _OUTPUT.verbose = lambda: sys.stdout, verbose
    _OUTPUT.is_commands = True
    try:
        with warnings_in_the_log():
            yield
    finally:
        vars(_OUTPUT).update(before)


def show(line: Line) -> None:
    """Show a line that another process has logged."""
    _OUTPUT.show(line)


def is_shown() -> bool:
    """Return whether a command shows what this process logs, and its errors last."""
    return _OUTPUT.is_commands


def terminal() -> Console | None:
    """Return the terminal that lines are shown on, None if there is none."""
    return _OUTPUT.console
