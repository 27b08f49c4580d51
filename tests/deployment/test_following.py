"""`fed3r run` shows a run to its end, whatever is killed on the way.

With real processes; their times are Flower's: 60 s until a dead ServerApp is noticed.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.console.logs import Line
from fed3r_app.deployment import follow
from fed3r_app.deployment.local import SUPERLINK
from fed3r_app.deployment.relay import Relay
from tests.harness.deployment import PROJECT, SERVER_APP

_FLOWERS = "\x1b[92mINFO \x1b[0m:      Starting\n"
_TRACE = (
    "2026-01-02 03:04:05  flwr: ERROR: ServerApp raised\nTraceback (…):\nKeyError: 7\n"
)


def relayed(*chunks: str) -> tuple[Relay, list[Line]]:
    shown: list[Line] = []
    relay = Relay(shown.append)
    for chunk in chunks:
        relay.write(chunk)
    relay.close()
    return relay, shown


def test_the_app_s_lines_are_told_from_flower_s_and_from_ray_s() -> None:
    ours = "2026-01-02 03:04:05  10 clients"
    text = (
        f"{_FLOWERS}{ours}\n\x1b[36m(ClientAppActor pid=7)\x1b[0m {ours}\n(raylet) x\n"
    )
    _, shown = relayed(text)
    assert [line.is_flowers for line in shown] == [True, False, False, True]
    assert [str(line) for line in shown if not line.is_flowers] == [ours, ours]


def test_lines_and_tables_may_come_in_pieces() -> None:
    head = "2026-01-02 03:04:05  The run has ended"
    _, shown = relayed(head[:9], f"{head[9:]}:\n\nmeth", "od  fed3r\n\n", _FLOWERS)
    assert [line.is_flowers for line in shown] == [False, True]
    assert shown[0].message == "The run has ended:\n\nmethod  fed3r\n"


def test_an_error_is_kept_for_the_end_and_a_traceback_is_flower_s() -> None:
    stamp = "2026-01-02 03:04:05  "
    relay, shown = relayed(f"{stamp}ERROR: one\n{stamp}ERROR: two\n", _TRACE)
    assert (relay.error, relay.crash) == ("two", "KeyError: 7")
    assert [(line.message, line.level) for line in shown[:1]] == [
        ("one", logging.ERROR)
    ]
    assert all(line.is_flowers for line in shown[1:])


def test_the_folder_of_a_run_is_known_from_its_beginning() -> None:
    relay, _ = relayed("2026-01-02 03:04:05  Results go to /tmp/runs/it\n")
    assert relay.directory == "/tmp/runs/it"


SETTINGS = ["backbone=pixels", "image-size=8", "ridge-lambda=1.0", "round-timeout=200"]


class Command:
    """`fed3r run` as a process, with what it has printed."""

    def __init__(
        self, deployment: Any, folder: Path, run_name: str, *more: str
    ) -> None:
        settings = [] if "--follow" in more else [*SETTINGS, f"run-name={run_name}"]
        words = [deployment.address, *settings, *more]
        self._out, self._err = folder / f"{run_name}.out", folder / f"{run_name}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fed3r_app.cli", "run", *words],
                cwd=PROJECT,
                env=os.environ | {"PYTHONPATH": str(PROJECT)},
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def error(self) -> str:
        return self._err.read_text()

    def wait_for(self, words: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if words in self.out:
                return
            assert self.process.poll() is None, self.out + self.error
            time.sleep(0.1)
        raise TimeoutError(f"No {words!r} in:\n{self.out}")


@pytest.fixture(scope="module")
def federation(deploy: Any) -> Any:
    nodes = {f"node-{i}": {"partition-id": i, "num-partitions": 2} for i in range(2)}
    return deploy(nodes)


@pytest.fixture
def command(federation: Any, tmp_path: Path) -> Iterator[Any]:
    started = []

    def start(run_name: str, *more: str) -> Command:
        started.append(Command(federation.deployment, tmp_path, run_name, *more))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def server_app(federation: Any) -> int:
    (process,) = federation.deployment.find(SERVER_APP)
    return int(process)


@pytest.mark.slow
def test_a_run_is_shown_calmly_with_its_summary_once(command: Any) -> None:
    run = command("calm")
    assert run.process.wait(400) == 0, run.error
    lines = run.out.splitlines()
    assert run.out.count("clients counted  2 of 2") == 1
    assert "\x1b" not in run.out and not run.error
    unknown = [line for line in lines if not Line.parse(line)]
    assert not any("flwr" in line or "INFO" in line for line in lines)
    assert unknown[0] == ""  # the table


@pytest.mark.slow
def test_a_killed_superlink_is_missed_and_the_run_shown_to_its_end(
    command: Any, federation: Any
) -> None:
    run = command("restart", "wait-for=3")  # one more than there are
    run.wait_for("Waiting for the clients")
    federation.deployment.kill(SUPERLINK)
    run.wait_for("No connection to the SuperLink", 40)
    federation.deployment.start_superlink()
    run.wait_for("The SuperLink answers again.")
    federation.deployment.start_supernode(
        "node-2", {"partition-id": 1, "num-partitions": 2, "client-id": "late"}
    )
    try:
        assert run.process.wait(400) == 0, run.error
    finally:
        federation.deployment.kill("node-2")
    assert run.out.count("clients counted  3 of 3") == 1
    assert run.out.count("Waiting for the clients …") == 1  # nothing is shown twice


@pytest.mark.slow
def test_a_stopped_server_app_saves_and_a_killed_one_is_noticed(
    command: Any, federation: Any
) -> None:
    stopped = command("stopped", "wait-for=3")
    stopped.wait_for("Waiting for the clients")
    os.kill(server_app(federation), signal.SIGTERM)
    assert stopped.process.wait(60) == 1
    assert "The run was stopped" in stopped.error
    assert "run again: fed3r run" in stopped.error

    killed = command("killed", "wait-for=3")
    killed.wait_for("Waiting for the clients")
    os.kill(server_app(federation), signal.SIGKILL)
    began = time.monotonic()
    killed.wait_for("Nothing from the ServerApp since", 40)
    assert killed.process.wait(90) == 1
    assert time.monotonic() - began < 75 + 10  # the machine may be busy
    (line,) = killed.error.splitlines()
    assert "ended without a word" in line and "run-name=killed" in line
    assert line.endswith("resume=true")


@pytest.mark.slow
def test_ctrl_c_says_how_to_see_the_run_again(command: Any, federation: Any) -> None:
    run = command("left", "wait-for=3")
    run.wait_for("Waiting for the clients")
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) == 130
    *_, last = run.out.splitlines()
    _, _, number = last.partition("--follow ")
    again = Command(federation.deployment, run._out.parent, "again", "--follow", number)
    try:
        again.wait_for("Waiting for the clients")
    finally:
        again.process.kill()
        os.kill(server_app(federation), signal.SIGTERM)


def test_the_silence_of_a_healthy_server_app_is_shorter_than_is_noticed() -> None:
    from strategies import messaging

    assert messaging._MINUTE < follow.LATER_SECONDS
