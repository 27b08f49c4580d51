"""An interrupted runner stops at once, and is resumed where it stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.runner.experiment import load
from simulation.runner.store import DONE, Store

PROJECT = Path(__file__).parents[3]


def start(path: Path, out: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "simulation", "run", str(path), "--output", str(out)],
        cwd=PROJECT,
        env={**os.environ, "FED3R_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to all processes of a terminal
    )


@pytest.mark.slow
def test_an_interrupted_experiment_is_resumed(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(
        """
        points:
          short: {}
          long: {finetune: lp, rounds: 150, eval-every: 0}
        axes:
          kind: [short, long]
        """
    )
    out, cache = tmp_path / "out", tmp_path / "cache"
    short, long = load(str(path))[0].runs
    store = Store(out)
    checkpoint = store.directory(long).checkpoint_path
    process = start(path, out, cache)
    deadline = time.monotonic() + 180
    while store.state(short) != DONE or not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == "Interrupted. The same command resumes it."
    assert store.state(long) != DONE
    first = store.directory(short).summary_path.stat().st_mtime_ns
    begun = len(store.directory(long).read_metrics())

    process = start(path, out, cache)
    output, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert "1 of 2 runs done already" in output
    assert store.directory(short).summary_path.stat().st_mtime_ns == first
    rounds = [line["round"] for line in store.directory(long).read_metrics()]
    assert rounds == list(range(1, 153))
    assert begun > 2  # resumed, not begun again
