"""What the processes of a run have written, shown as if it were this process's.

Flower hands on the text of all of them: lines of the app's, lines of Flower's own with
colours, tracebacks, and, in a simulation, what Ray collects from its workers.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from fed3r_app.console.logs import Line, without_colours
from fed3r_app.console.progress import show_line
from fed3r_app.words import RESULTS

Show = Callable[[Line], None]
_OF_A_WORKER = re.compile(r"\([A-Za-z]\w*(?: pid=[^)]*)?\) ?(.*)")


class Relay:
    """Takes text as it comes, and shows it line by line.

    An error of the app's is not shown but kept: whoever started the run says it last.

    Attributes
    ----------
    error : str
        The last error of the app's; "" if there was none.
    crash : str
        The last line of the last traceback that Flower wrote of the app.
    directory : str
        Where the run is written; "" before it began.
    last : float
        When something was written.
    """

    def __init__(self, show: Show = show_line) -> None:
        self._show = show
        self._text = ""  # of a line that has not ended
        self._line: Line | None = None  # of which more may come
        self._is_workers = False
        self.error = self.crash = self.directory = ""
        self.last = time.time()

    def write(self, text: str) -> None:
        """Take some text."""
        self.last = time.time()
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self._take(without_colours(line).rstrip("\r"))
        if not self._text:
            self._flush()

    def close(self) -> None:
        """Take what was written last, which may be no whole line."""
        if self._text:
            self.write("\n")
        self._flush()

    def _take(self, text: str) -> None:
        workers = _OF_A_WORKER.match(text)
        said = workers[1] if workers else text
        line = Line.parse(said) or Line.parse_flowers(said)
        if line is None and self._line and not workers:
            self._line = self._line._replace(message=f"{self._line.message}\n{text}")
            return
        self._flush()
        # What has no head and follows nothing is neither the app's nor in its words.
        self._line = line or Line(time.time(), logging.INFO, text, is_flowers=True)
        self._is_workers = bool(workers)

    def _flush(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        if line.is_flowers:
            if "\nTraceback " in line.message:
                self.crash = line.message.rstrip().rpartition("\n")[2]
        elif line.level >= logging.ERROR and not self._is_workers:
            line, self.error = line._replace(message=self.error), line.message
            if not line.message:
                return
        elif line.message.startswith(RESULTS):
            self.directory = line.message.removeprefix(RESULTS)
        self._show(line)
