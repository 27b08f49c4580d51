"""Differential privacy through the whole app: useful, and no more told than that."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fed3r_app import cli
from fed3r_app.config import DEFAULTS, Config
from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.errors import RunError
from fed3r_app.wire import pack_statistics
from tests.harness.fixtures import app_runs
from tests.harness.pixels import PIXELS, assert_close, pixels
from tests.harness.runs import failing

PRIVATE: dict[str, Any] = PIXELS | {
    "clients-per-round": 0,
    "upload": "dense",
    "upload-dtype": "float64",
    "dp-epsilon": 1.0,
    "max-retries": 0,
    "round-timeout": 20.0,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the whole app with ten clients."""
    return partial(app_runs(tmp_path, monkeypatch, PRIVATE, seed=0), 10)


def exact_statistics(feature_map: Any) -> Any:
    Z, y = pixels()
    return RidgeStatistics.of(feature_map(Z), y, 10)


@pytest.mark.parametrize(
    ("epsilon", "wanted"), [(1.0, 0.80), (2.0, 0.86), (4.0, 0.89), (8.0, 0.90)]
)
def test_digits_are_classified_well_within_the_budget(
    run: Any, epsilon: Any, wanted: Any
) -> None:
    accuracies = []
    for seed in range(5):
        settings = {"seed": seed, "partition": "iid", "dp_epsilon": epsilon}
        accuracies.append(run(run_name=str(seed), **settings).summary["accuracy"])
    assert np.mean(accuracies) >= wanted


def test_the_summary_states_the_privacy(run: Any) -> None:
    said = run().summary
    assert said["differential_privacy"] == {
        "mode": "central",
        "epsilon": 1.0,
        "delta": 1e-5,
        "sigma": pytest.approx(6.4617, rel=1e-4),
        "sensitivity": pytest.approx(3**0.5),
        "feature_norm": 1.0,
        "neighbours": "add or remove one sample",
    }
    sigma = said["differential_privacy"]["sigma"]
    assert said["ridge_lambda"] == pytest.approx(sigma * (2 * 64) ** 0.5)
    assert said["heads"].keys() == {"fed3r", "fedncm"}  # of the release, as all here
    assert said["heads"]["fed3r"] == said["accuracy"]


def test_what_is_written_down_is_the_release_and_no_more(run: Any) -> None:
    outcome = run()
    exact = exact_statistics(FeatureMap(64, norm=1.0))
    saved = outcome.statistics
    assert saved.n == outcome.summary["num_samples"]
    sigma = outcome.summary["differential_privacy"]["sigma"]
    # Had the noise been left out, or halved, anywhere, it would show here.
    assert float((saved.b - exact.b).std()) == pytest.approx(sigma, rel=0.2)
    assert float((saved.counts - exact.counts).double().std()) > sigma / 3
    model = outcome.model
    expected = solve_ridge(saved, outcome.summary["ridge_lambda"])
    torch.testing.assert_close(model.W, expected)
    assert model.feature_map.norm == 1.0
    for line in (outcome.directory / "ledger.jsonl").read_text().splitlines()[1:]:
        assert json.loads(line).keys() == {"client", "outcome", "time"}
    assert not any("num_samples" in line for line in outcome.metrics)
    names = {path.name for path in outcome.directory.iterdir()}
    assert not {"contributions", "checkpoint.safetensors"} & names


def test_the_bytes_do_not_tell_how_the_samples_are_spread(run: Any) -> None:
    runs = [run(run_name=split, partition=split) for split in ("iid", "by-class")]
    assert len({one.summary["upload_bytes"] for one in runs}) == 1


def test_there_is_one_evaluation_whatever_the_rounds(run: Any) -> None:
    lines = run(clients_per_round=2).metrics
    assert ["accuracy" in line for line in lines] == [False] * 4 + [True]


def test_too_few_clients_spend_no_privacy(run: Any, tmp_path: Path) -> None:
    break_one = failing([3], times=9)
    with pytest.raises(RunError, match=r"9 of 10 .* Nothing was released"):
        run(before=break_one)
    names = {path.name for path in (tmp_path / "runs" / "it").iterdir()}
    assert not {"statistics.safetensors", "model.safetensors"} & names
    outcome = run(run_name="enough", before=break_one, min_clients=9)
    assert outcome.summary["clients_counted"] == 9


def test_the_reason_of_a_refusal_is_not_written_down(run: Any) -> None:
    """It may quote a sum, and a single client's at that."""

    def too_large(context: Context, request: RecordDict, reply: RecordDict) -> None:
        if context.node_config["partition-id"] == 3 and "arrays" in reply:
            Z, y = torch.full((2, 64), 9.0), torch.zeros(2, dtype=torch.int64)
            reply["arrays"] = pack_statistics(Z, y, 10, "dense", "float64")

    outcome = run(tamper=too_large, min_clients=9)
    lines = (outcome.directory / "ledger.jsonl").read_text().splitlines()
    (refused,) = [json.loads(line) for line in lines if "refused" in line]
    assert refused.keys() == {"client", "outcome", "time"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fit_intercept": True},
        {"method": "fedncm"},
        {"method": "fed3r-rf", "rf_dim": 100, "rf_sigma": 3.0},
    ],
)
def test_with_hardly_any_noise_it_is_the_plain_solution(
    run: Any, settings: Any
) -> None:
    outcome = run(dp_epsilon=1e9, ridge_lambda=0.5, **settings)
    model = outcome.model
    stats = exact_statistics(model.feature_map)
    if settings.get("method") == "fedncm":
        expected = stats.b / stats.b.norm(dim=0)
    else:
        expected = solve_ridge(stats, 0.5, intercept="fit_intercept" in settings)
    assert_close(model.W, expected, 0.05)
    assert outcome.summary["num_samples"] == pytest.approx(stats.n, abs=3)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"upload": "factor"}, "upload must be 'dense' with dp-epsilon, got 'factor'"),
        ({"method": "lda"}, "got 'lda': noise would make its covariance indefinite"),
        ({"upload-dtype": "float32"}, "upload-dtype must be 'float64'"),
        ({"rf-sigma": "auto", "method": "fed3r-rf"}, "rf-sigma must be a number"),
        ({"finetune": "lp"}, "finetune must be 'none' with dp-epsilon, got 'lp'"),
        ({"client-evaluation": True}, "client-evaluation must be false"),
        ({"keep-contributions": True}, "keep-contributions must be false"),
        ({"resume": True, "run-name": "x"}, "resume must be false .* budget again"),
        ({"eval-every": 1}, "eval-every must be 'auto' or 0 with dp-epsilon, got 1"),
        ({"dataset": "local"}, "labels must name all classes with dp-epsilon, got ''"),
        ({"dataset": "local", "labels": " ,"}, "dp-epsilon, got ' ,'"),
        ({"dp-delta": 1.0}, "dp-delta must be below 1, got 1.0"),
        ({"dp-delta": 0.0}, "dp-delta must be a number > 0"),
        ({"dp-epsilon": -1.0}, "dp-epsilon must be a number >= 0"),
        ({"dp-epsilon": 0.0, "dp-mode": "distributed"}, "dp-epsilon must be > 0 with"),
    ],
)
def test_settings_that_would_undo_the_privacy_are_refused(
    settings: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        Config.from_run_config(DEFAULTS | PRIVATE | settings)


def test_a_saved_release_can_be_solved_and_audited_but_not_changed(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run()
    W = outcome.weights
    assert cli.main(["solve", str(outcome.directory)]) == 0
    # Auto is the size of the noise here, too.
    torch.testing.assert_close(outcome.weights, W)
    assert cli.main(["audit", str(outcome.directory)]) == 0
    lam, heads = outcome.summary["ridge_lambda"], outcome.summary["heads"]
    assert cli.main(["solve", str(outcome.directory), "--method", "lda"]) == 1
    assert "make its covariance indefinite" in capsys.readouterr().err
    # The heads are those with the lambda of the noise, whichever is solved.
    assert cli.main(["solve", str(outcome.directory), "--method", "fedncm"]) == 0
    assert outcome.summary["heads"] == pytest.approx(heads)
    assert cli.main(["solve", str(outcome.directory), "--method", "fed3r"]) == 0
    assert outcome.summary["ridge_lambda"] == pytest.approx(lam)
    assert cli.main(["forget", str(outcome.directory), "3"]) != 0
    assert "without differential privacy" in capsys.readouterr().err
