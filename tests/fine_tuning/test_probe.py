"""The probe is Fed3R on the fine-tuned backbone; refit saves its classifier."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor

from fed3r_app.cli import main as fed3r
from fed3r_app.core import RidgeStatistics, predict, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.errors import RunError
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.server import fine_tuning_phase
from fed3r_app.training.model import tuned_backbone
from tests.harness.runs import AppRuns
from tests.harness.spies import spy

CPU = torch.device("cpu")
# float64 uploads, and a lambda that leaves the problem well conditioned.
EXACT: dict[str, Any] = {"upload_dtype": "float64", "ridge_lambda": 1.0, "rounds": 1}


def features(model: Any, images: Any, rows: Any) -> Any:
    backbone = load_backbone(model.backbone)
    tuned = tuned_backbone(backbone, model.backbone_arrays)
    return extract_features(tuned, images, rows, device=CPU)


def fed3r_again(model: Any, data: Any, num_clients: int) -> Any:
    """Return Fed3R's W on the features of a saved backbone, client by client."""
    stats = RidgeStatistics.zeros(model.feature_map.d, len(data.class_names))
    for rows in split_rows(data, "by-class", num_clients, 0.1, 0):
        y = torch.from_numpy(data.train.labels[rows])
        Z = features(model, data.train, rows)
        stats = stats + RidgeStatistics.of(Z, y, len(data.class_names))
    return solve_ridge(stats, EXACT["ridge_lambda"])


def accuracy(model: Any, data: Any, W: Tensor) -> float:
    Z = features(model, data.test, np.arange(len(data.test)))
    y = torch.from_numpy(data.test.labels.copy())
    right = predict(Z, W, model.present) == y
    return float(right.double().mean())


def relative(W: Tensor, expected: Any) -> float:
    return float((W - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    "settings",
    [
        {"finetune": "feat"},
        {"finetune": "full", "method": "none", "batch_norm": "train"},
        {"finetune": "feat", "method": "fedncm"},
    ],
    ids=["feat", "full", "after class means"],
)
def test_refit_saves_fed3r_on_the_fine_tuned_backbone(
    run: AppRuns, few_photos: Any, settings: Any
) -> None:
    softmax = run(2, run_name="softmax", **few_photos | EXACT | settings).model
    outcome = run(2, refit=True, **few_photos | EXACT | settings)
    model = outcome.model
    data = load_dataset("imagefolder", few_photos["data_path"])
    W = fed3r_again(model, data, 2)
    # The same features in sums of another order: float64 rounding times the condition
    # number ||A|| / lambda, some 1e5.
    assert relative(model.W, W) <= 1e-9
    assert model.ridge_lambda == EXACT["ridge_lambda"]
    assert relative(softmax.W, W) > 1e-3  # the softmax's own classifier is another
    for name, value in softmax.backbone_arrays.items():
        assert torch.equal(value, model.backbone_arrays[name])
    summary = outcome.summary
    assert summary["probe_accuracy"] == accuracy(model, data, W) == summary["accuracy"]
    assert summary["softmax_accuracy"] == accuracy(softmax, data, softmax.W)
    assert summary["model"] == "refit"


def test_a_probe_alone_saves_the_softmax(run: AppRuns, few_images: Any) -> None:
    outcome = run(2, probe=True, **few_images | EXACT | {"finetune": "feat"})
    data = load_dataset("imagefolder", few_images["data_path"])
    model = outcome.model
    assert outcome.summary["accuracy"] == accuracy(model, data, model.W)
    W = fed3r_again(model, data, 2)
    assert outcome.summary["probe_accuracy"] == accuracy(model, data, W)


def test_the_probe_takes_the_features_of_the_last_evaluation(
    run: AppRuns, few_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spy(monkeypatch, fine_tuning_phase, "extract_features")
    outcome = run(2, probe=True, **few_images | {"finetune": "feat", "rounds": 2})
    assert outcome.summary["probe_accuracy"] is not None
    assert len(made) == 2  # one a round


def test_a_probe_needs_no_more_clients_than_the_run(
    run: AppRuns, few_images: Any
) -> None:
    def fail(message: Message, context: Context) -> None:
        probed = message.content.array_records.get("arrays")
        if probed and message.metadata.message_type == "train.statistics":
            assert context.node_config["partition-id"] != 1

    settings = few_images | {"finetune": "feat", "rounds": 1, "max_retries": 0}
    with pytest.raises(RunError, match="backbone counted 1 of 2 clients; missing: 1"):
        run(2, probe=True, before=fail, run_name="all", **settings)
    outcome = run(2, probe=True, before=fail, min_clients=1, **settings)
    assert outcome.summary["probe_accuracy"] is not None


def test_what_the_probe_sends_is_counted(run: AppRuns, few_images: Any) -> None:
    settings: dict[str, Any] = few_images | {"finetune": "feat", "rounds": 1}
    without = run(2, run_name="without", **settings).summary
    probed = run(2, probe=True, **settings).summary
    assert probed["upload_bytes"] > without["upload_bytes"]
    # The backbone goes to both clients, 4 bytes a parameter.
    down = probed["download_bytes"] - without["download_bytes"]
    assert down >= 2 * 4 * 341_792
    dense = 2 * 4 * (1024**2 + 1024 * 4)
    assert probed["paper_upload_bytes"] - without["paper_upload_bytes"] == dense
    paper_down = probed["paper_download_bytes"] - without["paper_download_bytes"]
    assert paper_down == 2 * 4 * 341_792


@pytest.mark.parametrize("refit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_fine_tuned_model_classifies_files(
    run: AppRuns,
    few_photos: Any,
    few_digits: Any,
    capsys: pytest.CaptureFixture[str],
    refit: Any,
) -> None:
    settings = few_photos | EXACT | {"finetune": "full", "batch_norm": "train"}
    outcome = run(2, refit=refit, **settings)
    images = sorted((few_digits / "test").glob("*/*.png"))
    capsys.readouterr()
    assert fed3r(["predict", str(outcome.directory), *map(str, images)]) == 0
    lines = capsys.readouterr().out.splitlines()
    model, data = outcome.model, load_dataset("imagefolder", str(few_digits))
    assert data.test is not None
    scores = model.scores(features(model, data.test, np.arange(len(data.test))))
    assert len(lines) == len(images) == 12
    right = []
    for line, path, row in zip(lines, images, scores, strict=True):
        name = model.class_names[int(row.argmax())]
        assert line.startswith(f"{path}: {name} (")
        right.append(name == path.parent.name)
    assert np.mean(right) == outcome.summary["accuracy"]
