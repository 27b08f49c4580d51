"""The real ServerApp and ClientApp in one process: odd data, damage, wrong settings.

Each ends in the right classifier or in a sentence, never in a wrong classifier.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.data import load_dataset, split_rows
from fed3r_app.errors import RunError
from tests.harness.fixtures import app_runs
from tests.harness.pixels import EXACT, SIZE, assert_close, pixels, pooled, save_sides
from tests.harness.runs import FILES, AppRuns, failing

GIVEN = EXACT | {"clients-per-round": 3, "round-timeout": 20.0, "max-retries": 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, GIVEN, seed=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an image folder: bright on either side, and a class without images."""
    parts = {"train": {"left": 6, "right": 6}, "test": {"left": 3, "right": 3}}
    made = save_sides(tmp_path / "images", parts)
    (made / "train" / "unseen").mkdir()
    return made


@pytest.fixture
def sides(folder: Path) -> dict[str, Any]:
    """Return the settings of a run on that folder."""
    return {"dataset": "imagefolder", "data_path": str(folder), "partition": "iid"}


def rounds_of(outcome: Any) -> Any:
    return [line["round"] for line in outcome.metrics]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "by-class"])
@pytest.mark.parametrize("kappa", [0, 1, 4])
def test_the_whole_app_gives_the_pooled_solution(
    run: AppRuns, partition: Any, kappa: Any
) -> None:
    outcome = run(10, partition=partition, clients_per_round=kappa)
    assert_close(outcome.weights, pooled())
    assert outcome.summary["clients_counted"] == 10
    assert outcome.summary["rounds"] == {0: 1, 1: 10, 4: 3}[kappa]


@pytest.mark.parametrize("upload", ["factor", "packed", "dense"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_the_form_of_the_upload_does_not_show(
    run: AppRuns, upload: str, dtype: str, tolerance: float
) -> None:
    outcome = run(4, upload=upload, upload_dtype=dtype)
    assert_close(outcome.weights, pooled(), tolerance)


def test_all_files_of_a_run_are_there(run: AppRuns) -> None:
    outcome = run(3)
    assert {path.name for path in outcome.directory.iterdir()} == FILES
    assert rounds_of(outcome) == [1]


@pytest.mark.parametrize("num_clients", [12, 30])
def test_clients_with_one_image_or_none_are_counted(
    run: AppRuns, sides: dict[str, Any], num_clients: int
) -> None:
    outcome = run(num_clients, **sides)
    assert outcome.summary["clients_counted"] == num_clients
    assert outcome.summary["num_samples"] == 12
    assert_close(outcome.weights, pooled("imagefolder", sides["data_path"]))


def test_a_class_that_nobody_has_is_named_and_never_predicted(
    run: AppRuns, sides: dict[str, Any]
) -> None:
    outcome = run(2, **sides)
    assert outcome.summary["absent_classes"] == ["unseen"]
    assert outcome.summary["accuracy"] == 1.0
    model = outcome.model
    unseen = model.class_names.index("unseen")
    assert not model.present[unseen]
    assert not model.W[:, unseen].any()


def test_a_set_without_test_images_has_no_accuracy(
    run: AppRuns, folder: Path, sides: dict[str, Any]
) -> None:
    (folder / "test").rename(folder / "elsewhere")
    outcome = run(2, **sides)
    assert outcome.summary["accuracy"] is None
    assert_close(outcome.weights, pooled("imagefolder", str(folder)))


def test_a_damaged_image_is_skipped_and_counted_and_two_are_an_error(
    run: AppRuns, folder: Path, sides: dict[str, Any]
) -> None:
    settings, left = sides | {"partition": "by-class"}, folder / "train" / "left"
    whole = (left / "4.png").read_bytes()
    for name in ("3.png", "4.png"):
        (left / name).write_bytes(b"no image")
    with pytest.raises(RunError, match=r"1 of 2 clients were counted.*max-unreadable"):
        run(2, run_name="two", **settings)
    (left / "4.png").write_bytes(whole)
    outcome = run(2, **settings)
    assert outcome.summary["unreadable_images"] == 1
    assert outcome.summary["num_samples"] == 11


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_cache_is_not_believed(
    run: AppRuns, tmp_path: Path, damage: Any
) -> None:
    run(3, run_name="first")
    for path in (tmp_path / "cache").glob("*/features.bin"):
        data = bytearray(path.read_bytes())
        if damage == "truncated":
            data = data[: len(data) // 2 + 3]
        else:
            data[:: SIZE * SIZE] = bytes(len(data[:: SIZE * SIZE]))
        path.write_bytes(data)
    assert_close(run(3).weights, pooled())


def test_weights_of_another_model_are_refused(run: AppRuns, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pt"
    torch.save({"layer.weight": torch.zeros(3)}, wrong)
    with pytest.raises(RunError, match=r"weights must be a state dict .*wrong\.pt"):
        run(2, backbone="mobilenet_v2", weights=str(wrong), image_size=32)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ridge_lambda": -1}, "ridge-lambda must be 'auto' or a number > 0, got -1"),
        ({"dataset": "imagefolder"}, "data-path must"),
        ({"dataset": "imagefolder", "data_path": "/not/there"}, "/not/there"),
        ({"partition": "natural"}, "no natural clients"),
        ({"backbone": "mobilenet_v9"}, "backbone must .*Did you mean"),
        ({"device": "cuda:99"}, "device must be"),
        ({"min_clients": 4}, "min-clients must be <= 3, the number of clients, got 4"),
        ({"run_name": "a/b"}, "run-name must be"),
        ({"run_name": "new", "resume": True}, "resume = true, got no config"),
    ],
)
def test_wrong_settings_end_in_one_sentence(
    run: AppRuns, settings: Any, sentence: str
) -> None:
    with pytest.raises(RunError, match=sentence) as caught:
        run(3, **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_is_not_overwritten(run: AppRuns) -> None:
    run(2)
    with pytest.raises(RunError, match="already holds a run"):
        run(2)


def test_a_client_that_fails_once_is_in_the_result(run: AppRuns) -> None:
    outcome = run(10, before=failing([1], times=1))
    assert outcome.summary["status"] == "complete"
    assert_close(outcome.weights, pooled())


def test_a_client_that_stays_away_is_named_and_can_be_asked_later(run: AppRuns) -> None:
    sentence = r"9 of 10 clients .* missing: 1\. Client 1: Client 1 is ill\. What"
    with pytest.raises(RunError, match=sentence):
        run(10, before=failing([1], times=9))
    outcome = run.last
    assert outcome.summary["status"] == "partial"
    assert outcome.summary["missing_clients"] == ["1"]
    run(10, resume=True)
    assert outcome.summary["status"] == "complete"
    assert outcome.summary["clients_counted"] == 10
    assert_close(outcome.weights, pooled())
    assert rounds_of(outcome) == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_can_be_resumed_to_no_effect(run: AppRuns) -> None:
    before = run(4).summary
    after = run(4, resume=True).summary
    for key in ("accuracy", "rounds", "clients_counted", "num_samples"):
        assert after[key] == before[key]


def test_a_run_is_not_resumed_with_other_data_or_features(run: AppRuns) -> None:
    run(4)
    with pytest.raises(RunError, match="partition must be 'by-class', as in the run"):
        run(4, resume=True, partition="iid")
    with pytest.raises(RunError, match="clients must be 4"):
        run(5, resume=True)


def test_enough_clients_are_enough(run: AppRuns) -> None:
    outcome = run(10, before=failing([1], times=9), min_clients=9)
    assert outcome.summary["status"] == "partial"
    assert outcome.summary["missing_clients"] == ["1"]


def test_nobody_counted_is_an_error_without_a_model(run: AppRuns) -> None:
    with pytest.raises(RunError, match="0 of 2 clients were counted; missing: 0, 1"):
        run(2, before=failing([0, 1], times=9))
    assert not (run.last.directory / "model.safetensors").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_simulated_client_can_be_forgotten_and_the_run_goes_on(
    run: AppRuns, keep: Any
) -> None:
    outcome = run(10, keep_contributions=keep)
    parts = split_rows(load_dataset("digits", ""), "by-class", 10, alpha=0.1, seed=0)
    others = np.concatenate([rows for i, rows in enumerate(parts) if i != 3])
    for forget in ("3", "3", ""):
        outcome = run(10, keep_contributions=keep, resume=True, forget=forget)
        assert_close(outcome.weights, pooled(rows=others))
    assert outcome.summary["clients_counted"] == outcome.summary["clients"] == 9
    assert len(outcome.summary["absent_classes"]) == 1


REPLACE: dict[str, Any] = {"sampling": "with-replacement", "clients_per_round": 2}


def test_rounds_with_replacement_that_run_out_give_a_partial_result(
    run: AppRuns,
) -> None:
    result = run(10, **REPLACE, statistics_rounds=3).summary
    assert (result["status"], result["rounds"]) == ("partial", 3)
    assert 2 <= result["clients_counted"] <= 6


def test_too_few_clients_after_the_last_round_are_an_error_if_asked_for(
    run: AppRuns,
) -> None:
    with pytest.raises(RunError, match="clients were counted"):
        run(10, **REPLACE, statistics_rounds=2, min_clients=8)


def test_more_rounds_go_on_where_the_others_stopped(run: AppRuns) -> None:
    run(10, **REPLACE, statistics_rounds=2)
    outcome = run(10, **REPLACE, statistics_rounds=0, resume=True)
    assert outcome.summary["status"] == "complete"
    assert_close(outcome.weights, pooled())
    whole = run(10, **REPLACE, run_name="whole")
    assert whole.summary["rounds"] == outcome.summary["rounds"]


def test_counted_clients_without_images_end_in_a_sentence(
    run: AppRuns, sides: dict[str, Any]
) -> None:
    few = REPLACE | {"clients_per_round": 1, "statistics_rounds": 1, "seed": 1}
    with pytest.raises(RunError, match="have no images: there is nothing to solve"):
        run(400, **sides, **few)


def test_random_features_choose_their_width_from_the_clients(run: AppRuns) -> None:
    result = run(5, method="fed3r-rf", rf_dim=200, ridge_lambda="auto").summary
    assert result["feature_dim"] == 200
    assert result["accuracy"] > 0.9
    # 3 times the root mean square distance of the training features.
    Z = pixels()[0].double()
    expected = 3 * (2 * Z.var(dim=0, correction=0).sum()).sqrt()
    assert result["rf_sigma"] == pytest.approx(float(expected), rel=1e-5)


def test_client_evaluation_is_the_accuracy_on_all_training_images(run: AppRuns) -> None:
    outcome = run(5, client_evaluation=True)
    Z, y = pixels()
    right = outcome.model.scores(Z).argmax(dim=1) == y
    assert outcome.summary["client_accuracy"] == float(right.double().mean())


def test_the_intercept_and_the_class_means_run_too(run: AppRuns) -> None:
    accuracy = run(5, fit_intercept=True, run_name="a").summary
    assert accuracy["feature_dim"] == SIZE * SIZE + 1
    means = run(5, method="fedncm", run_name="b").summary
    assert means["ridge_lambda"] is None
    assert 0.7 < means["accuracy"] < accuracy["accuracy"]
