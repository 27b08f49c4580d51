"""Checkpoints: what resumes from one ends where an uninterrupted run ends."""

import gc
import logging
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message

from fed3r_app.core import RidgeStatistics, RunningSum
from fed3r_app.errors import RunError
from tests.harness.runs import AppRuns, assert_same_model, failing, kebab

LP: dict[str, Any] = {"finetune": "lp", "clients_per_round": 3, "lr": 0.01}


def in_two_parts(
    run: AppRuns, num_clients: int, settings: Any, first: int = 2, rounds: int = 4
) -> Any:
    """Return the outcome of a run at once and of one that was resumed."""
    whole = run(num_clients, run_name="whole", **settings | {"rounds": rounds})
    run(num_clients, run_name="parts", **settings | {"rounds": first})
    again: dict[str, Any] = settings | {"rounds": rounds, "resume": True}
    return whole, run(num_clients, run_name="parts", **again)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm"])
@pytest.mark.parametrize("method", ["fed3r", "none", "fed3r-rf"])
def test_a_resumed_run_ends_with_the_same_bits(
    run: AppRuns, optimizer: Any, method: Any
) -> None:
    settings = LP | {"optimizer": optimizer, "method": method, "rf_dim": 100}
    whole, parts = in_two_parts(run, 10, settings)
    assert_same_model(parts.model, whole.model)
    assert {e.round for e in parts.trained} == {3, 4}
    for key in ("accuracy", "rounds", "temperature"):
        assert parts.summary[key] == whole.summary[key]


@pytest.mark.parametrize(
    "settings",
    [
        {"finetune": "feat", "optimizer": "fedavgm", "batch_norm": "train"},
        pytest.param(
            {"finetune": "full", "optimizer": "fedavg", "method": "none"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["feat", "full"],
)
def test_a_resumed_network_ends_with_the_same_bits(
    run: AppRuns, few_images: Any, settings: Any
) -> None:
    whole, parts = in_two_parts(run, 2, few_images | settings, first=1, rounds=2)
    assert_same_model(parts.model, whole.model)


def test_the_metrics_of_a_resumed_run_have_no_gap(run: AppRuns) -> None:
    whole, parts = in_two_parts(run, 10, LP)
    numbers = [line["round"] for line in parts.metrics]
    assert numbers == list(range(1, len(whole.metrics) + 1))
    for one, other in zip(whole.metrics, parts.metrics, strict=True):
        for key in ("accuracy", "train_loss", "clients_trained", "paper_upload_bytes"):
            assert one.get(key) == other.get(key)
    # Real bytes: the clients say hello once more, and that is all.
    extra = parts.summary["upload_bytes"] - whole.summary["upload_bytes"]
    assert 0 < extra < 10 * 200


def test_a_run_stopped_in_a_round_resumes_as_if_it_had_not_been(run: AppRuns) -> None:
    def stop(message: Message, context: Context) -> None:
        if message.content.config_records["config"].get("server-round") == 3:
            raise OSError("The power is gone.")

    whole = run(10, run_name="whole", rounds=5, **LP)
    with pytest.raises(RunError, match="The power is gone"):
        run(10, before=stop, rounds=5, **LP)
    resumed = run(10, rounds=5, resume=True, **LP)
    assert_same_model(resumed.model, whole.model)
    # Of a finished run, nothing changes.
    after = run(10, rounds=5, resume=True, **LP)
    assert not after.trained
    assert_same_model(after.model, whole.model)
    assert after.summary["accuracy"] is not None


def test_scaffold_resumes_with_all_variates_at_zero_and_says_so(
    run: AppRuns, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = LP | {"optimizer": "scaffold", "method": "none"}
    run(10, rounds=3, **settings)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        resumed = run(10, rounds=5, resume=True, **settings)
    assert "control variates all start at zero again" in caplog.text
    for each in resumed.round(4):
        # The server's is the mean of the clients', which are lost: zero as well.
        assert not each.sent("control")["classifier.weight"].any()
    assert np.isfinite(resumed.model.W.numpy()).all()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_ends_in_a_sentence(run: AppRuns, damage: Any) -> None:
    path = run(4, rounds=1, **LP).directory / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-5] ^= 1
    else:
        data = data[: len(data) // 2] if damage == "truncated" else bytearray()
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors must hold the checkp"):
        run(4, rounds=2, resume=True, **LP)


CHANGED = {
    **dict.fromkeys(("lr", "weight-decay", "server-lr", "temperature"), 0.5),
    **dict.fromkeys(("local-epochs", "batch-size", "seed", "ridge-lambda"), 7),
    **{"clients-per-round": 1, "optimizer": "scaffold", "method": "none"},
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_setting_is_named_and_the_model_stays(run: AppRuns, key: str) -> None:
    before = run(4, rounds=1, **LP).model
    settings: dict[str, Any] = kebab(LP) | {"rounds": 2, key: CHANGED[key]}
    with pytest.raises(RunError, match=f"{key} must be .*, as in the run that is res"):
        run(4, resume=True, **settings)
    assert_same_model(run.last.model, before)


def test_fine_tuning_can_be_added_to_a_finished_closed_form(run: AppRuns) -> None:
    whole = run(10, run_name="whole", rounds=2, **LP)
    run(10, **LP | {"finetune": "none"})
    added = run(10, rounds=2, resume=True, **LP)
    assert_same_model(added.model, whole.model)


def test_a_fine_tuning_that_has_begun_asks_nobody_for_statistics(run: AppRuns) -> None:
    fail, settings = failing([1], 9), LP | {"min_clients": 9, "max_retries": 0}
    whole = run(10, run_name="whole", rounds=2, before=fail, **settings)
    run(10, rounds=1, before=fail, **settings)
    resumed = run(10, rounds=2, resume=True, **settings)
    assert not any(each.kind == "train.statistics" for each in resumed.exchanges)
    assert_same_model(resumed.model, whole.model)
    assert torch.equal(resumed.model.present, whole.model.present)
    for key in ("status", "missing_clients", "closed_form_accuracy"):
        assert resumed.summary[key] == whole.summary[key]


def test_statistics_that_were_lost_are_asked_for_again(run: AppRuns) -> None:
    whole = run(4, run_name="whole", rounds=2, **LP)
    path = run(4, rounds=1, **LP).directory / "statistics.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    path.with_name("statistics.earlier.safetensors").unlink(missing_ok=True)
    resumed = run(4, rounds=2, resume=True, **LP)
    kinds = [each.kind for each in resumed.exchanges]
    assert kinds.count("train.statistics") == 4
    assert_same_model(resumed.model, whole.model)


@pytest.mark.parametrize("resume", [False, True])
def test_no_statistics_are_held_while_the_classifier_trains(
    run: AppRuns, resume: Any
) -> None:
    def count_statistics() -> Any:
        kinds = (RidgeStatistics, RunningSum)
        return sum(type(one) in kinds for one in gc.get_objects())

    def look(message: Message, context: Context) -> None:
        if message.metadata.message_type == "train":
            held.append(count_statistics())

    run(4, rounds=1, **LP)
    gc.collect()
    before = count_statistics()
    held: list[Any] = []
    name = "it" if resume else "other"
    run(4, rounds=2, resume=resume, run_name=name, before=look, **LP)
    assert held and max(held) == before


def test_a_tuned_run_does_not_resume_without_its_fine_tuning(run: AppRuns) -> None:
    before = run(4, rounds=1, **LP)
    model, metrics = before.model, before.metrics
    with pytest.raises(RunError, match="finetune must not be 'none' to resume"):
        run(4, resume=True, **LP | {"finetune": "none"})
    assert_same_model(run.last.model, model)
    assert run.last.metrics == metrics
