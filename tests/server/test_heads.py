"""Every head from the same statistics: through the app, solved later, compared."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fed3r_app import cli, evaluation
from fed3r_app.core import RidgeStatistics, select_lambda, solve_lda
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.errors import RunError
from fed3r_app.runs.directory import RunDirectory
from tests.harness.fixtures import app_runs
from tests.harness.pixels import EXACT, LAM, assert_close, pixels, save_sides
from tests.harness.runs import AppRuns, Outcome, assert_same_model, failing

GIVEN = EXACT | {"method": "lda", "clients-per-round": 0, "max-retries": 0}
METHODS = ("fed3r", "fedncm", "lda")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, GIVEN, seed=0)


def assert_pooled(outcome: Outcome, rows: Any = None, lam: float = LAM) -> None:
    """Check W and bias, and that the accuracy is theirs."""
    W, bias = solve_lda(RidgeStatistics.of(*pixels(rows), 10), lam)
    model = outcome.model
    assert model.classifier.bias is not None
    assert_close(model.W, W)
    assert_close(model.classifier.bias, bias)
    assert (model.method, outcome.summary["method"]) == ("lda", "lda")
    assert model.ridge_lambda == outcome.summary["ridge_lambda"] == pytest.approx(lam)
    Z, y = pixels(part="test")
    assert outcome.summary["accuracy"] == share(model.scores(Z), y)


def share(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(dim=1) == y).double().mean())


@pytest.mark.parametrize("partition", ["iid", "by-class"])
def test_the_discriminant_is_that_of_the_pooled_images(
    run: AppRuns, partition: str
) -> None:
    outcome = run(10, partition=partition, client_evaluation=True)
    assert_pooled(outcome)
    Z, y = pixels()
    assert outcome.summary["client_accuracy"] == share(outcome.model.scores(Z), y)


def test_lambda_is_chosen_on_the_same_sums(run: AppRuns) -> None:
    lam = select_lambda(RidgeStatistics.of(*pixels(), 10))
    assert_pooled(run(3, ridge_lambda="auto"), lam=lam)


def test_a_run_that_is_resumed_with_it_has_the_discriminant_of_all(
    run: AppRuns,
) -> None:
    with pytest.raises(RunError, match="9 of 10 clients were counted"):
        run(10, before=failing([1], times=9), method="fed3r")
    outcome = run(10, resume=True)
    assert_pooled(outcome)
    # What works on the run later keeps the method.
    assert cli.main(["audit", str(outcome.directory)]) == 0
    assert cli.main(["solve", str(outcome.directory), "--ridge-lambda", "0.5"]) == 0
    assert_pooled(outcome)


@pytest.mark.parametrize("keep", [True, False])
def test_forgetting_a_client_is_never_having_had_it(run: AppRuns, keep: bool) -> None:
    run(10, keep_contributions=keep)
    outcome = run(10, keep_contributions=keep, resume=True, forget="3")
    parts = split_rows(load_dataset("digits", ""), "by-class", 10, alpha=0.1, seed=0)
    others = np.concatenate([rows for i, rows in enumerate(parts) if i != 3])
    assert_pooled(outcome, others)
    assert not outcome.model.present.all()
    assert outcome.summary["heads"]["lda"] == outcome.summary["accuracy"]


def test_linear_probing_starts_from_weights_and_bias(run: AppRuns) -> None:
    start = run(4, run_name="start").model.classifier
    outcome = run(4, finetune="lp", rounds=1, lr=1e-12)
    sent = outcome.trained[0].sent()
    assert start.bias is not None
    assert torch.equal(torch.tensor(sent["classifier.weight"]), start.W.T.float())
    assert torch.equal(torch.tensor(sent["classifier.bias"]), start.bias.float())
    assert outcome.summary["accuracy"] == outcome.summary["closed_form_accuracy"]


@pytest.mark.parametrize("ridge_lambda", [LAM, "auto"])
def test_the_summary_has_what_each_head_gets_whichever_is_the_runs(
    run: AppRuns, ridge_lambda: Any
) -> None:
    given = {"ridge_lambda": ridge_lambda}
    outcomes = [run(3, method=name, run_name=name, **given) for name in METHODS]
    accuracies = {one.summary["method"]: one.summary["accuracy"] for one in outcomes}
    assert [one.summary["heads"] for one in outcomes] == 3 * [accuracies]
    assert len({*accuracies.values()}) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fed3r-rf", "rf_dim": 50, "rf_sigma": 3.0},
        {"method": "fed3r", "fit_intercept": True},
    ],
)
def test_one_head_alone_is_compared_with_nothing(run: AppRuns, settings: Any) -> None:
    assert "heads" not in run(3, **settings).summary


def test_nothing_is_compared_without_test_images_or_on_many_features(
    run: AppRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_sides(tmp_path / "images", {"train": {"left": 6, "right": 6}})
    images: dict[str, Any] = {"dataset": "imagefolder", "data_path": str(folder)}
    assert "heads" not in run(2, run_name="no test", **images).summary
    monkeypatch.setattr(evaluation, "_MAX_COMPARED_DIM", 63)
    assert "heads" not in run(3).summary


def test_a_comparison_that_fails_ends_no_run(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no lambda")

    monkeypatch.setattr("strategies.solver.select_lambda", refuse)
    summary = run(3, method="fedncm", ridge_lambda="auto").summary
    assert summary["accuracy"] > 0.7 and "heads" not in summary


def test_any_head_becomes_the_model_without_a_client(
    run: AppRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {name: run(3, method=name, run_name=name) for name in METHODS}
    outcome = run(3, method="fed3r")
    heads = outcome.summary["heads"]
    solve = ["solve", str(outcome.directory), "--ridge-lambda"]
    for name, other in expected.items():
        capsys.readouterr()
        lam = "auto" if name == "fedncm" else str(LAM)
        assert cli.main([*solve, lam, "--method", name]) == 0
        assert f"method    {name}\n" in capsys.readouterr().out
        assert_same_model(outcome.model, other.model)
        assert outcome.model.method == outcome.summary["method"] == name
        assert outcome.summary["accuracy"] == heads[name]
        assert outcome.summary["heads"] == heads
        assert outcome.summary["ridge_lambda"] == other.summary["ridge_lambda"]
        assert cli.main(["audit", str(outcome.directory)]) == 0
    # Later commands stay with the method.
    assert cli.main([*solve, str(LAM)]) == 0
    assert_pooled(outcome)
    assert RunDirectory(outcome.directory).read_config()["method"] == "lda"


def test_a_model_in_another_file_leaves_the_run_as_it_is(
    run: AppRuns, tmp_path: Path
) -> None:
    outcome, other = run(3, method="fed3r"), tmp_path / "other.safetensors"
    solve = ["solve", str(outcome.directory), "--method", "lda", "--output", str(other)]
    assert cli.main(solve) == 0
    assert other.is_file()
    assert outcome.model.method == outcome.summary["method"] == "fed3r"
    assert RunDirectory(outcome.directory).read_config()["method"] == "fed3r"


def test_a_method_that_can_not_be_solved_leaves_the_run_as_it_is(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not positive definite")

    outcome = run(3, method="fed3r")
    monkeypatch.setattr("fed3r_app.runs.saved_run.solve_head", refuse)
    assert cli.main(["solve", str(outcome.directory), "--method", "lda"]) == 1
    monkeypatch.undo()
    assert outcome.model.method == outcome.summary["method"] == "fed3r"
    assert cli.main(["audit", str(outcome.directory)]) == 0


@pytest.mark.parametrize(
    ("settings", "method", "sentence"),
    [
        ({"method": "fed3r", "fit_intercept": True}, "lda", "fit-intercept must be"),
        ({}, "fed3r-rf", "method must be fed3r or fedncm or lda for statistics of"),
        ({}, "qda", r"method must be fed3r or fedncm or lda .* got 'qda'"),
        (
            {"method": "fed3r-rf", "rf_dim": 50, "rf_sigma": 3.0},
            "lda",
            "method must be fed3r-rf for statistics of method = 'fed3r-rf', got 'lda'",
        ),
    ],
)
def test_a_method_of_other_statistics_is_refused(
    run: AppRuns,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
    method: str,
    sentence: str,
) -> None:
    outcome = run(2, **settings)
    before, config = outcome.model, (outcome.directory / "config.json").read_text()
    capsys.readouterr()
    assert cli.main(["solve", str(outcome.directory), "--method", method]) == 1
    error = capsys.readouterr().err
    assert re.search(sentence, error) and len(error.splitlines()) == 1
    assert_same_model(outcome.model, before)
    assert (outcome.directory / "config.json").read_text() == config
