"""What a process logs: calm in a terminal, stamped and plain in a pipe."""

import logging
import subprocess
import sys
import warnings
from io import StringIO
from typing import Any

import pytest
from flwr.common.logger import log
from rich.console import Console

from fed3r_app.console import logs, progress
from fed3r_app.console.logs import Line
from fed3r_app.console.progress import Progress
from fed3r_app.errors import RunError
from fed3r_app.words import first_names, plural


def flowers(level: int, message: str, **extra: Any) -> None:
    """Log as Flower's own code does."""
    import flwr

    record = logging.LogRecord(
        "flwr", level, f"{flwr.__path__[0]}/x.py", 1, message, (), extra.get("exc_info")
    )
    logging.getLogger("flwr").handle(record)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Any:
    """Return what a command shows on a terminal of 100 columns."""
    return Console(file=Terminal(), force_terminal=True, width=100, _environ={})


def written(console: Any) -> str:
    return str(console.file.getvalue())


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        *((1, "client", "1 client"), (0, "client", "0 clients")),
        *(
            (1, "class", "1 class"),
            (2, "class", "2 classes"),
            (3, "batch", "3 batches"),
        ),
        *((2, "day", "2 days"), (2, "entry", "2 entries")),
    ],
)
def test_a_number_and_its_noun_agree(number: int, noun: str, text: str) -> None:
    assert plural(number, noun) == text


def test_few_names_are_named_and_the_others_counted() -> None:
    assert first_names(["a", "b"], 2) == "a, b"
    assert first_names(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_line_in_a_pipe_has_a_time_and_no_colours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.shown():
        log(logging.INFO, "10 clients")
        log(logging.WARNING, "Client 3 failed: gone")
    first, second = capsys.readouterr().out.splitlines()
    assert "\x1b" not in first + second
    for line, level, message in (
        (first, logging.INFO, "10 clients"),
        (second, logging.WARNING, "Client 3 failed: gone"),
    ):
        parsed = Line.parse(line)
        assert parsed is not None
        assert (parsed.level, parsed.message, parsed.is_flowers) == (level, message, 0)
        assert str(parsed) == line


def test_a_warning_of_the_mathematics_is_a_line_of_a_command_s_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.shown():
        warnings.warn("The data don't determine it.", stacklevel=1)
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.endswith("  WARNING: The data don't determine it.\n")
    assert len(said.out.splitlines()) == 1


def test_a_line_on_a_terminal_is_its_message_and_is_not_broken(terminal: Any) -> None:
    command = f"fed3r {'x' * 120}"
    with logs.directed_to(terminal, verbose=False):
        log(logging.INFO, command)
        log(logging.WARNING, "[bold]not markup")
    first, second = written(terminal).splitlines()
    assert first == command
    assert "Warning: " in second and "[bold]not markup" in second


def test_flower_s_own_lines_are_shown_only_if_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verbose, number in ((False, 0), (True, 2)):
        with progress.shown(verbose=verbose):
            flowers(logging.INFO, "Starting something")
            flowers(logging.WARNING, "PREVIEW FEATURE")
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == number
        assert all(parsed.is_flowers for parsed in map(Line.parse, lines) if parsed)


def test_an_error_of_ours_has_no_traceback_below_its_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.shown(verbose=True):
        for error in (RunError("said already"), KeyError("a bug")):
            flowers(
                logging.ERROR, "ServerApp raised", exc_info=(type(error), error, None)
            )
    out = capsys.readouterr().out
    assert "said already" not in out and "KeyError: 'a bug'" in out


def test_what_flower_starts_logs_with_times_and_without_colours() -> None:
    program = (
        "import logging; from flwr.common.logger import log; "
        "from fed3r_app.console import logs; logs.configure(); logs.configure(); "
        "log(logging.INFO, 'once'); logging.getLogger('fed3r_app.x').info('too')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    lines = [Line.parse(line) for line in (done.stdout + done.stderr).splitlines()]
    assert [line and line.message for line in lines] == ["once", "too"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = map(Line.parse, capsys.readouterr().out.splitlines())
    return [line.message for line in lines if line]


def test_lines_of_progress_say_what_is_left_and_reach_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.shown():
        report = Progress("images")
        for done in range(1, 356):
            clock.now += 0.125
            report(done, 355)
    first, *_, last = messages(capsys)
    assert first == "images: 41 of 355, about 39 s left"
    assert last == "images: 355 of 355"


def test_what_ends_early_ends_with_what_was_reached(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.shown(), Progress("clients counted") as report:
        for done in range(9):
            clock.now += 2
            report(done, 10)
    assert messages(capsys)[-1].startswith("clients counted: 8 of 10")


def test_what_is_quick_has_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(), Progress("images") as report:
        for done in range(1, 11):
            report(done, 10)
    assert messages(capsys) == []


def test_a_bar_on_a_terminal_shows_the_progress_and_goes(terminal: Any) -> None:
    with logs.directed_to(terminal, verbose=False), Progress("images") as report:
        report(3, 10)
        assert progress.BARS._shown is not None
        progress.BARS._shown.refresh()
        assert "3/10" in written(terminal)
        log(logging.INFO, "a line above")
        report(10, 10)
        assert progress.BARS._shown is None
    assert "a line above" in written(terminal)


def test_a_bar_is_gone_after_an_error(terminal: Any) -> None:
    with (
        pytest.raises(KeyError),
        logs.directed_to(terminal, verbose=False),
        Progress("images") as report,
    ):
        report(3, 10)
        raise KeyError
    assert progress.BARS._shown is None


def test_another_process_s_progress_becomes_a_bar(terminal: Any) -> None:
    line = Line(0.0, logging.INFO, "clients counted: 4 of 10, about 5 min left")
    with logs.directed_to(terminal, verbose=False):
        progress.show_line(line)
        assert progress.BARS._shown is not None
        progress.show_line(line._replace(message="clients counted: 10 of 10"))
        assert progress.BARS._shown is None
        progress.show_line(line._replace(message="done: 3 of them"))
    assert "done: 3 of them" in written(terminal)
