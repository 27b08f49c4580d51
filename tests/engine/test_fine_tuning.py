"""Fine-tuning on the real engine: state and arrays through Flower's own hands."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tests.harness.pixels import PIXELS


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the settings of a data set of few digits, read by a small network."""
    folder = tmp_path_factory.mktemp("few-digits")
    digits = load_digits()
    for digit in range(4):
        for i, row in enumerate(np.flatnonzero(digits.target == digit)[:8]):
            path = folder / ("train" if i < 6 else "test") / str(digit)
            path.mkdir(parents=True, exist_ok=True)
            grey = (digits.images[row] / 16 * 255).astype(np.uint8)
            Image.fromarray(grey).save(path / f"{i}.png")
    return {"dataset": "imagefolder", "data_path": str(folder), "image_size": 64}


def test_linear_probing_with_fedavg(engine: Any) -> None:
    outcome = engine.run("lp", 4, finetune="lp", rounds=3, **PIXELS)
    assert outcome.completed, outcome.output
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 2, 2]
    summary = outcome.summary
    # Small steps from a good start.
    assert abs(summary["accuracy"] - summary["closed_form_accuracy"]) < 0.03
    assert summary["temperature"] == 0.1
    files = {path.name for path in outcome.directory.iterdir()}
    assert "checkpoint.safetensors" in files


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "scaffold"])
@pytest.mark.parametrize(
    ("method", "finetune"),
    [(m, f) for m in ("fed3r", "none") for f in ("full", "lp", "feat")][:-1],
)
def test_a_cell_of_the_matrix(
    engine: Any, few_digits: Any, method: Any, finetune: Any, optimizer: Any
) -> None:
    cell = {"method": method, "finetune": finetune, "optimizer": optimizer}
    settings = cell | few_digits | {"rounds": 2, "clients_per_round": 0}
    outcome = engine.run("-".join(cell.values()), 4, **settings)
    assert outcome.completed, outcome.output
    assert [line["clients_trained"] for line in outcome.tuning] == [4, 4]
    # No state was lost between rounds: neither classifiers nor variates.
    assert "lost" not in outcome.output and "failed" not in outcome.output
    model = outcome.model
    assert bool(model.backbone_arrays) == (finetune != "lp")
    assert torch.isfinite(model.W).all()


@pytest.mark.slow
def test_the_engine_gives_the_same_bits_again_and_resumed(engine: Any) -> None:
    settings = PIXELS | {"finetune": "lp", "method": "none", "optimizer": "fedavgm"}
    settings["processes"] = 2
    whole = engine.run("whole", 5, rounds=4, **settings)
    engine.run("parts", 5, rounds=2, **settings)
    parts = engine.run("parts", 5, rounds=4, resume=True, **settings)
    assert whole.completed and parts.completed, parts.output
    assert torch.equal(whole.weights, parts.weights)
