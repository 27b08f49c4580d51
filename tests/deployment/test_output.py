"""Lines of Flower's programs on their way to a log file."""

import re
import subprocess
import sys

import pytest

from fed3r_app.deployment.output import OutputPrinter, with_time

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[92mINFO \x1b[0m:      Sent successfully\n", "flwr: Sent successfully"),
        ("\x1b[93mWARNING \x1b[0m:   No TLS\n", "flwr: WARNING: No TLS"),
        ("\x1b[91mERROR \x1b[0m:     It: broke\n", "flwr: ERROR: It: broke"),
    ],
)
def test_flower_s_lines_get_times_and_lose_their_colours(
    written: str, shown: str
) -> None:
    line = with_time(written)
    assert line is not None
    assert re.fullmatch(STAMP + re.escape(shown), line)


def test_lines_with_a_time_stay_as_they_are() -> None:
    line = "2026-01-02 03:04:05  clinic-7: ERROR: train.statistics failed: it is so."
    assert with_time(line + "\n") == line


def test_lines_that_say_nothing_are_left_out() -> None:
    assert with_time("\x1b[92mINFO \x1b[0m:      \n") is None
    assert with_time("\n") is None


def test_all_that_a_process_writes_comes_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = "import sys; print('INFO : one'); print(b'\\xff two', file=sys.stderr)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        relay = OutputPrinter(process, "two")
        relay.join(30)
    said = capsys.readouterr().out
    assert "flwr: one" in said and "two" in said
    assert relay.has_found
