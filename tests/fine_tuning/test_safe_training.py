"""Fine-tuning by default: it pays where it can, and never leaves a worse model."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fed3r_app.config import DEFAULTS
from fed3r_app.errors import RunError
from fed3r_app.server import final_model
from fed3r_app.server.quality_probe import RefitRule
from tests.fine_tuning.conftest import PLAIN
from tests.harness.runs import AppRuns, assert_same_model

# What a run has that says nothing of fine-tuning.
SAFE: dict[str, Any] = {
    key.replace("-", "_"): DEFAULTS[key] for key in (*PLAIN, "guard", "refit")
}
LP: dict[str, Any] = SAFE | {"finetune": "lp", "rounds": 3, "clients_per_round": 0}
DIGITS: dict[str, Any] = SAFE | {
    **{"dataset": "digits-small", "partition": "dirichlet", "alpha": 1.0},
    **{"backbone": "mobilenet_v2", "image_size": 64, "clients_per_round": 4},
}


def tune(run: AppRuns, finetune: str, **settings: Any) -> Any:
    return run(4, **DIGITS | {"finetune": finetune} | settings)


def test_it_improves_a_real_network_on_real_images(run: AppRuns) -> None:
    summary = tune(run, "feat", rounds=4).summary
    assert summary["model"] == "refit"
    assert summary["accuracy"] == summary["probe_accuracy"]
    # 6.5 points on 355 test images with these four clients.
    assert summary["accuracy"] > summary["closed_form_accuracy"] + 0.03


@pytest.mark.parametrize(
    ("finetune", "share"),
    [
        *(("feat", 10), ("full", 10)),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in [("lp", 10), ("feat", 0.1), ("full", 0.1), ("lp", 0.1)]
        ),
    ],
)
def test_a_tenth_and_ten_times_the_learning_rate_lose_nothing(
    run: AppRuns, finetune: str, share: float
) -> None:
    summary = tune(run, finetune, lr=0.03 * share, rounds=3).summary
    assert summary["accuracy"] >= summary["closed_form_accuracy"] - 0.01


def test_a_destroyed_model_ends_it_at_the_start_with_a_sentence(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    start = run(4, run_name="start", **LP | {"finetune": "none"}).model
    with caplog.at_level(logging.WARNING, logger="flwr"):
        outcome = run(4, **LP | {"rounds": 9, "lr": 1e4, "clip_norm": 0.0})
    assert_same_model(outcome.model, start)
    summary = outcome.summary
    assert summary["model"] == "closed form"
    assert summary["accuracy"] == summary["closed_form_accuracy"]
    # The clients of the second and the third round found it bad.
    assert "on their training images the clients of rounds 2 and 3" in caplog.text
    assert "Is lr = 10000 too high?" in caplog.text
    assert len(outcome.round(3)) == 4 and not outcome.round(4)
    resumed = run(4, **LP | {"rounds": 9, "lr": 1e4, "clip_norm": 0.0, "resume": True})
    assert not resumed.trained
    assert_same_model(resumed.model, start)


def test_a_loss_that_is_not_finite_at_any_client_ends_it_too(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    def diverge(context: Context, request: RecordDict, reply: RecordDict) -> None:
        config = request.config_records.get("config", ConfigRecord())
        if config.get("server-round") == 2:
            metrics = dict(reply.metric_records["metrics"])
            nan = {"train-loss": math.nan, "received-loss": math.nan}
            reply["metrics"] = MetricRecord(metrics | nan)

    with caplog.at_level(logging.WARNING, logger="flwr"):
        outcome = run(4, tamper=diverge, **LP)
    assert outcome.summary["status"] == "complete"
    assert "Fine-tuning ends with the model of round 0" in caplog.text
    with pytest.raises(RunError, match="4 of the 4 clients of round 2 have no finite"):
        run(4, tamper=diverge, run_name="off", **LP | {"guard": False})


def test_a_softmax_that_fits_worse_than_the_start_is_not_the_model(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One bad round is not the end, a bad last one is seen by the exchange after it.
    outcome = run(4, **LP | {"rounds": 1, "lr": 1e4, "clip_norm": 0.0})
    assert outcome.summary["model"] == "closed form"
    assert outcome.summary["softmax_accuracy"] < outcome.summary["accuracy"]
    kept = run(4, run_name="off", **LP | {"rounds": 1, "lr": 1e4, "guard": False})
    assert kept.summary["model"] == "fine-tuned"
    assert kept.summary["accuracy"] == kept.summary["softmax_accuracy"]


def test_a_refit_that_cross_validation_does_not_prefer_is_not_the_model(
    run: AppRuns, few_photos: Any
) -> None:
    settings = SAFE | few_photos | {"finetune": "feat", "rounds": 1}
    start = run(2, run_name="start", **few_photos).model
    # Features that do not move are no better.
    outcome = run(2, **settings | {"lr": 1e-12, "weight_decay": 0.0})
    assert outcome.summary["model"] == "closed form"
    assert_same_model(outcome.model, start)


def test_a_random_start_has_no_guard_and_no_refit(run: AppRuns) -> None:
    outcome = run(4, method="none", lr=1e4, clip_norm=0.0, **_without(LP, "clip_norm"))
    assert outcome.summary["model"] == "fine-tuned"
    assert not any("temperature" in each.kind for each in outcome.exchanges)
    for each in outcome.trained:
        assert "received-correct" not in each.reply.metric_records["metrics"]


def _without(settings: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k != key}


def test_the_clients_say_how_what_they_receive_fits(run: AppRuns) -> None:
    outcome = run(4, **LP)
    for each in outcome.round(1):
        metrics: Any = dict(each.reply.metric_records["metrics"])
        # The start in closed form, on pixels of one class.
        assert 0.5 < metrics["received-correct"] / metrics["num-examples"] <= 1
        assert metrics["received-loss"] > 0


def test_an_interrupted_fine_tuning_leaves_the_start(run: AppRuns) -> None:
    start = run(4, run_name="start", **LP | {"finetune": "none"}).model

    def fail(message: Message, context: Context) -> None:
        config: Any = dict(message.content.config_records["config"])
        assert config.get("server-round", 0) < 2, "The disk is gone."

    with pytest.raises(RunError, match="All 4 clients of round 2 failed"):
        run(4, before=fail, **LP)
    assert_same_model(run.last.model, start)
    outcome = run(4, resume=True, **LP)
    whole = run(4, run_name="whole", **LP)
    assert_same_model(outcome.model, whole.model)


ALTERNATE: dict[str, Any] = {"finetune": "feat", "refit_every": 1, "rounds": 2}


def test_refits_on_the_way_take_the_place_of_the_softmax(
    run: AppRuns, few_photos: Any
) -> None:
    settings = SAFE | few_photos | ALTERNATE | {"guard": False, "refit": False}
    outcome = run(2, **settings)
    sent = [each for each in outcome.trained if "classifier" in each.request]
    assert [each.round for each in sent] == [1, 1, 2, 2]
    first, second = (
        torch.tensor(each.request["classifier"]["classifier.weight"].numpy())
        for each in (sent[0], sent[2])
    )
    assert not torch.equal(first, second)
    assert torch.equal(outcome.model.W, second.T.double())


@pytest.mark.slow
def test_refits_on_the_way_survive_a_resume(run: AppRuns, few_photos: Any) -> None:
    settings = SAFE | few_photos | ALTERNATE | {"guard": False, "rounds": 3}
    whole = run(2, run_name="whole", **settings)
    run(2, **settings | {"rounds": 2})
    assert_same_model(run(2, resume=True, **settings).model, whole.model)


@pytest.mark.parametrize(
    ("optimizer", "finetune", "method"),
    [
        pytest.param("fedavgm", "full", "fed3r", marks=pytest.mark.slow),
        pytest.param("scaffold", "feat", "fed3r", marks=pytest.mark.slow),
        ("fedavg", "full", "lda"),
    ],
)
def test_refits_on_the_way_go_with_every_optimiser_and_start(
    run: AppRuns, few_photos: Any, optimizer: str, finetune: str, method: str
) -> None:
    how = {"optimizer": optimizer, "finetune": finetune, "method": method}
    settings = SAFE | few_photos | ALTERNATE | how | {"guard": False}
    outcome = run(2, **settings | {"rounds": 2, "refit": False})
    assert [line["clients_trained"] for line in outcome.tuning] == [2, 2]
    assert outcome.summary["status"] == "complete"


def test_a_softmax_that_is_refused_may_be_refitted(
    run: AppRuns, few_photos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = final_model.ModelChoice
    monkeypatch.setattr(choice, "_objection_to_softmax", lambda self: "it is refused")
    monkeypatch.setattr(RefitRule, "objection", lambda self, refit: None)
    settings = SAFE | few_photos | {"finetune": "full", "rounds": 1}
    assert run(2, **settings).summary["model"] == "refit"
    refused = run(2, run_name="no", **settings | {"refit": False}).summary
    assert refused["model"] == "closed form"


def test_a_client_that_is_gone_keeps_the_start_and_loses_no_run(
    run: AppRuns, few_photos: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Message, context: Context) -> None:
        tuned = message.content.array_records.get("arrays")
        if tuned and message.metadata.message_type == "train.statistics":
            assert context.node_config["partition-id"] != 1, "I am gone."

    settings = SAFE | few_photos | ALTERNATE | {"max_retries": 0}
    with caplog.at_level(logging.WARNING, logger="flwr"):
        outcome = run(2, before=fail, **settings)
    assert outcome.summary["model"] == "closed form"
    assert "No refit after round 1: Fed3R on the fine-tuned" in caplog.text
    assert "counted 1 of 2 clients; missing: 1" in caplog.text


def test_clipping_is_what_keeps_a_network_alive(run: AppRuns) -> None:
    def softmax(**settings: Any) -> float:
        free: dict[str, Any] = {"guard": False, "refit": False, "rounds": 2}
        outcome = tune(run, "feat", **free, **settings)
        return float(outcome.summary["softmax_accuracy"])

    assert softmax(clip_norm=0.0, run_name="any") < 0.3 < softmax(run_name="clipped")


def test_the_prior_reaches_the_clients_and_one_class_is_enough_to_learn(
    run: AppRuns,
) -> None:
    one_class: dict[str, Any] = LP | {"guard": False, "refit": False, "rounds": 5}
    start = run(10, run_name="start", **LP | {"finetune": "none"}).summary["accuracy"]
    without = run(10, run_name="without", **one_class | {"local_prior": False})
    outcome = run(10, **one_class | {"local_prior": True})
    assert not torch.equal(outcome.model.W, without.model.W)
    moved = outcome.trained[0]
    name = "classifier.weight"
    assert (moved.received()[name] != moved.sent()[name]).any()
    assert outcome.summary["accuracy"] >= start - 0.01


def test_a_resumed_run_remembers_a_bad_round(run: AppRuns) -> None:
    wild = LP | {"lr": 1e4, "clip_norm": 0.0}
    run(4, **wild | {"rounds": 2})
    outcome = run(4, resume=True, **wild | {"rounds": 9})
    # The model after the first round was found bad before, that after two is now.
    assert len(outcome.trained) == 4
    assert outcome.summary["model"] == "closed form"
