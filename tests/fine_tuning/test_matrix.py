"""Every variant with every optimiser, from both starts, by the default network."""

from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.spec import BackboneSpec
from tests.harness.runs import AppRuns

STARTS = ("fed3r", "none")
VARIANTS = ("full", "lp", "feat")
OPTIMIZERS = ("fedavg", "fedavgm", "scaffold")
QUICK = {
    ("fed3r", "feat", "fedavgm"),
    ("fed3r", "lp", "scaffold"),
    ("none", "full", "scaffold"),
    ("none", "lp", "fedavg"),
}
CELLS = [
    pytest.param(
        *cell, id="-".join(cell), marks=() if cell in QUICK else pytest.mark.slow
    )
    for method in STARTS
    for finetune in VARIANTS
    for optimizer in OPTIMIZERS
    if (method, finetune) != ("none", "feat")
    for cell in [(method, finetune, optimizer)]
]


@pytest.mark.parametrize(("method", "finetune", "optimizer"), CELLS)
def test_a_cell_runs_from_start_to_summary(
    run: AppRuns, few_photos: Any, method: Any, finetune: Any, optimizer: Any
) -> None:
    # A start that classifies all its few images with certainty has no gradient: what
    # is seen to move, moves by weight decay too.
    settings = few_photos | {"image_size": 64, "lr": 1e-3, "weight_decay": 0.1}
    outcome = run(4, method=method, finetune=finetune, optimizer=optimizer, **settings)
    summary = outcome.summary
    assert (summary["finetune"], summary["optimizer"]) == (finetune, optimizer)
    assert summary["status"] == "complete"
    assert summary["temperature"] == (0.1 if method == "fed3r" else 1.0)
    assert [line["clients_trained"] for line in outcome.tuning] == [4, 4]
    assert all(0 <= line["accuracy"] <= 1 for line in outcome.tuning)
    assert summary["accuracy"] == outcome.tuning[-1]["accuracy"]
    assert {"clients_counted", "ridge_lambda", "paper_upload_bytes"} <= summary.keys()
    model = outcome.model
    assert bool(model.backbone_arrays) == (finetune != "lp")
    assert torch.isfinite(model.W).all()
    first, last = outcome.trained[0].sent(), outcome.trained[-1].sent()
    moved = [name for name in first if (first[name] != last[name]).any()]
    assert len(moved) > len(first) / 2
    kinds = {name.split(".")[0] for name in first}
    expected = {"full": {"backbone", "classifier"}, "lp": {"classifier"}}
    assert kinds == expected.get(finetune, {"backbone"})


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["full", "feat"])
@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
def test_a_network_with_an_intercept_and_augmentation(
    run: AppRuns, few_photos: Any, finetune: Any, batch_norm: Any
) -> None:
    full: dict[str, Any] = {"fit_intercept": True, "augment": True}
    outcome = run(4, finetune=finetune, batch_norm=batch_norm, **full, **few_photos)
    assert outcome.model.W.shape == (1281, 4)
    assert outcome.model.feature_map.intercept
    assert outcome.summary["status"] == "complete"


def test_random_features_are_fine_tuned_by_linear_probing(run: AppRuns) -> None:
    outcome = run(
        10, method="fed3r-rf", rf_dim=200, finetune="lp", rounds=3, clients_per_round=0
    )
    assert outcome.trained[0].sent()["classifier.weight"].shape == (10, 200)
    assert outcome.model.feature_map.rf_dim == 200
    assert outcome.summary["accuracy"] > 0.9


def test_an_intercept_becomes_the_bias(run: AppRuns) -> None:
    start = run(10, run_name="start", fit_intercept=True).model
    outcome = run(10, fit_intercept=True, finetune="lp", rounds=1, lr=1e-12)
    sent = outcome.trained[0].sent()
    assert torch.equal(torch.tensor(sent["classifier.bias"]), start.W[-1].float())
    weight = torch.tensor(sent["classifier.weight"])
    assert torch.equal(weight, start.W[:-1].T.float())
    assert outcome.summary["accuracy"] == outcome.summary["closed_form_accuracy"]
    # Dividing the logits by a temperature changes no prediction.
    plain = run(10, finetune="lp", rounds=1, lr=1e-12, run_name="plain").summary
    assert plain["accuracy"] == plain["closed_form_accuracy"]


def test_the_clients_evaluate_the_model_that_came_of_it(run: AppRuns) -> None:
    summary = run(4, client_evaluation=True, finetune="lp", lr=0.1, rounds=2).summary
    start = run(4, client_evaluation=True, run_name="start").summary
    assert summary["closed_form_accuracy"] == start["accuracy"]
    assert summary["client_accuracy"] != start["client_accuracy"]


def test_linear_probing_runs_no_network(
    run: AppRuns, few_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(2, run_name="fills the cache", **few_images)

    def refuse(*_: Any) -> None:
        raise AssertionError("The network was asked for.")

    monkeypatch.setattr("fed3r_app.features.extraction._network", refuse)
    monkeypatch.setattr("clients.training_node._network", refuse)
    monkeypatch.setattr("fed3r_app.training.model.trainable_copy", refuse)
    monkeypatch.setattr("fed3r_app.server.fine_tuning_phase.trainable_copy", refuse)
    for method in STARTS:
        outcome = run(2, finetune="lp", method=method, run_name=method, **few_images)
        assert [line["clients_trained"] for line in outcome.tuning] == [2, 2]


def test_a_client_in_linear_probing_does_not_even_build_the_network(
    run: AppRuns, few_images: Any
) -> None:
    """The server does, once: it counts the FLOPs of a forward pass."""
    run(2, run_name="fills the cache", **few_images)

    keys = ("backbone", "weights", "image_size")
    backbone, seen = load_backbone(BackboneSpec(*(few_images[k] for k in keys))), []

    def forget(message: Message, context: Context) -> None:
        vars(backbone).pop("module", None)

    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        if "server-round" in request.config_records["config"]:
            seen.append("module" in vars(backbone))

    run(2, finetune="lp", method="none", before=forget, tamper=tamper, **few_images)
    assert seen == [False] * 4
