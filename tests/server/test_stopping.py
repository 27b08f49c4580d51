"""Ctrl-C and SIGTERM in the middle of a run: what was counted is there to resume."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

from fed3r_app.core import RunningSum
from fed3r_app.errors import RunStopped
from tests.harness.pixels import EXACT, assert_close
from tests.harness.runs import AppRuns, Outcome

# A client takes a moment, so that a signal comes in between.
_PROGRAM = """
import sys, time
from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS
from fed3r_app.console.progress import shown
from fed3r_app.server_app import app as server_app
from simulation.engines.inline import run_inline

def slow(message, context):
    time.sleep(0.2)
    return client_app(message, context)

with shown():
    run_inline(server_app, slow, 10, DEFAULTS | {settings!r})
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path))
    return AppRuns(tmp_path, {key.replace("_", "-"): v for key, v in EXACT.items()})


def wait_for_clients(ledger: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if ledger.exists() and len(ledger.read_text().splitlines()) > number:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{ledger} has not {number} clients.")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_a_run_with_a_snapshot_and_it_is_resumed(
    runs: AppRuns, number: signal.Signals
) -> None:
    whole = runs(10, run_name="whole")
    settings = runs.config({"run_name": "it"})
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(settings=settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_clients(runs.root / "it" / "ledger.jsonl", 4)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    counted = len(Outcome(runs.root / "it").snapshot.contributions)
    assert 4 <= counted < 10
    *_, last = error.splitlines()
    assert f"the statistics of {counted} clients" in last
    assert 'run-name="it" resume=true' in last
    resumed = runs(10, run_name="it", resume=True)
    asked = resumed.grid.asked["train.statistics"]
    assert asked == 10 - counted
    assert resumed.summary["clients_counted"] == 10
    assert_close(resumed.weights, whole.weights)


@pytest.mark.parametrize("step", ["add", "value"])
def test_a_signal_amid_a_sum_waits_until_it_is_whole(
    runs: AppRuns, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    whole = runs(10, run_name="whole")
    method, calls = getattr(RunningSum, step), itertools.count(1)

    def interrupted(self: RunningSum, *arguments: Any) -> Any:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return method(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(RunStopped, match="4 clients"):
        patch.setattr(RunningSum, step, interrupted)
        runs(10, run_name="it", clients_per_round=1)
    assert len(Outcome(runs.root / "it").snapshot.contributions) == 4
    resumed = runs(10, run_name="it", resume=True)
    assert resumed.grid.asked["train.statistics"] == 6
    assert_close(resumed.weights, whole.weights)


def test_in_flower_s_simulation_the_end_of_the_process_stops_the_run(
    runs: AppRuns,
) -> None:
    whole = runs(10, run_name="whole")
    raised: list[BaseException] = []
    counted = threading.Semaphore(0)

    def slowly(message: Any, context: Any) -> None:
        counted.release()
        time.sleep(0.1)

    def run() -> None:  # in a thread, as Flower does
        try:
            runs(10, run_name="it", before=slowly)
        except RunStopped as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(14):  # ten say hello
        assert counted.acquire(timeout=60)
    trigger_exit_handlers(run_before_force_exit=True)  # what Flower does at a signal
    thread.join(60)
    (error,) = raised
    assert 'run-name="it" resume=true' in str(error)
    assert 0 < len(Outcome(runs.root / "it").snapshot.contributions) < 10
    resumed = runs(10, run_name="it", resume=True)
    assert resumed.summary["clients_counted"] == 10
    assert_close(resumed.weights, whole.weights)


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Check that a run leaves the signals of the process as they were."""
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
