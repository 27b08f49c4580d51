"""What Flower's programs write, passed on as lines that a log file can hold.

Flower's own lines have colours and no times. They get times and lose their colours;
lines of the app have both right and stay as they are.
"""

from __future__ import annotations

import subprocess
import threading

from fed3r_app.console.logs import Line, without_colours


class OutputPrinter(threading.Thread):
    """Prints what a process writes, line by line, until it ends.

    ``has_found`` is whether a line had the words that are looked for.
    """

    def __init__(self, process: subprocess.Popen[bytes], words: str = "") -> None:
        super().__init__(daemon=True)
        self._process, self._words = process, words
        self.has_found = False
        self.start()

    def run(self) -> None:
        """Read to the end."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace")
                self.has_found |= bool(self._words) and self._words in text
                if (shown := with_time(text)) is not None:
                    print(shown, flush=True)


def with_time(text: str) -> str | None:
    """Return a line for a log file; None for one that says nothing."""
    text = without_colours(text).rstrip()
    line = Line.parse_flowers(text)
    if line is None:  # it has its time, or goes on with the line above
        return text or None
    return str(line) if line.message else None
