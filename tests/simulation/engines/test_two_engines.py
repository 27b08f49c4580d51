"""Two engines, one result: the same experiment in one process and on Flower's."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from simulation.__main__ import main
from simulation.runner.collect import collect
from simulation.runner.experiment import load
from simulation.runner.store import Store

EXPERIMENT = """
points:
  ridge: {method: fed3r, partition: dirichlet, alpha: 0.1}
  random features: {method: fed3r-rf, rf-dim: 40}
  tuned: {method: fed3r, finetune: lp, optimizer: scaffold, rounds: 3}
axes:
  kind: [ridge, random features, tuned]
"""


@pytest.mark.slow
def test_both_engines_give_the_same_numbers(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    # As Ray's clients have: sums in float32 depend on the number of threads.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = write(f"  eval-every: 1\n{EXPERIMENT}")
    outcomes = {}
    for engine in ("inline", "flower"):
        out = tmp_path / engine
        arguments = ["run", str(path), "--output", str(out), "--engine", engine]
        assert main(arguments) == 0
        outcomes[engine] = collect(load(str(path))[0], Store(out)).finished
    assert len(outcomes["inline"]) == 3
    for ours, theirs in zip(outcomes["inline"], outcomes["flower"], strict=True):
        same_numbers(ours.summary, theirs.summary)
        assert len(ours.metrics) == len(theirs.metrics) >= 2
        for our_round, their_round in zip(ours.metrics, theirs.metrics, strict=True):
            same_numbers(our_round, their_round)


def same_numbers(ours: Mapping[str, object], theirs: Mapping[str, object]) -> None:
    """Compare all values but time and command; sums may be added in another order."""
    assert ours.keys() == theirs.keys()
    for key in ours.keys() - {"seconds", "provenance"}:
        if isinstance(ours[key], float):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key
        else:
            assert ours[key] == theirs[key], key
