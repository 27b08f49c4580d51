"""Differential privacy through the whole app: useful, and no more told than that."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fed3r_app import cli
from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS, Config
from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.runs.model_file import load_model
from fed3r_app.runs.snapshots import load_snapshot
from fed3r_app.server_app import RunError, main

PRIVATE = {
    "backbone": "pixels",
    "image-size": 8,
    "clients-per-round": 0,
    "upload": "dense",
    "upload-dtype": "float64",
    "dp-epsilon": 1.0,
    "max-retries": 0,
    "round-timeout": 20.0,
}


@pytest.fixture
def run(tmp_path, monkeypatch, make_grid, app_node):
    """Run the whole app with ten clients; return the directory of the run."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))

    def start(name="it", change_nodes=None, **settings):
        changes = {key.replace("_", "-"): value for key, value in settings.items()}
        run_config = DEFAULTS | PRIVATE | {"run-name": name} | changes
        nodes = {
            1000 + i: app_node(
                client_app,
                run_config,
                {"partition-id": i, "num-partitions": 10},
                1000 + i,
            )
            for i in range(10)
        }
        if change_nodes:
            change_nodes(nodes)
        main(make_grid(nodes), Context(1, 1, {}, RecordDict(), run_config))
        return tmp_path / "runs" / name

    return start


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def exact_statistics(feature_map):
    data, backbone = (
        load_dataset("digits", ""),
        load_backbone(BackboneSpec("pixels", "none", 8)),
    )
    rows = np.arange(len(data.train))
    Z = extract_features(
        backbone, data.train, rows, device=torch.device("cpu"), dtype="float32"
    )
    y = torch.from_numpy(data.train.labels.copy())
    return RidgeStatistics.of(feature_map(Z), y, 10)


@pytest.mark.parametrize(
    ("epsilon", "wanted"), [(1.0, 0.80), (2.0, 0.86), (4.0, 0.89), (8.0, 0.90)]
)
def test_digits_are_classified_well_within_the_budget(run, epsilon, wanted):
    accuracies = []
    for seed in range(5):
        directory = run(str(seed), seed=seed, partition="iid", dp_epsilon=epsilon)
        accuracies.append(summary(directory)["accuracy"])
    assert np.mean(accuracies) >= wanted


def test_the_summary_states_the_privacy(run):
    said = summary(run())
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


def test_what_is_written_down_is_the_release_and_no_more(run):
    directory = run()
    exact = exact_statistics(FeatureMap(64, norm=1.0))
    saved = load_snapshot(directory / "statistics.safetensors").statistics
    released = summary(directory)["num_samples"]
    assert saved.n == released
    sigma = summary(directory)["differential_privacy"]["sigma"]
    # Had the noise been left out, or halved, anywhere, it would show here.
    assert float((saved.b - exact.b).std()) == pytest.approx(sigma, rel=0.2)
    assert float((saved.counts - exact.counts).double().std()) > sigma / 3
    model = load_model(directory / "model.safetensors")
    expected = solve_ridge(saved, summary(directory)["ridge_lambda"])
    torch.testing.assert_close(model.W, expected)
    assert model.feature_map.norm == 1.0
    for line in (directory / "ledger.jsonl").read_text().splitlines()[1:]:
        assert json.loads(line).keys() == {"client", "outcome", "time"}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        assert "num_samples" not in json.loads(line)
    names = {path.name for path in directory.iterdir()}
    assert not {"contributions", "checkpoint.safetensors"} & names


def test_the_bytes_do_not_tell_how_the_samples_are_spread(run):
    one, other = run("one", partition="iid"), run("other", partition="by-class")
    assert summary(one)["upload_bytes"] == summary(other)["upload_bytes"]


def test_there_is_one_evaluation_whatever_the_rounds(run):
    directory = run(clients_per_round=2)
    lines = (directory / "metrics.jsonl").read_text().splitlines()[1:]
    assert ["accuracy" in json.loads(line) for line in lines] == [False] * 4 + [True]


def test_too_few_clients_spend_no_privacy(run, tmp_path, fail):
    def break_one(nodes):
        nodes[1003] = lambda message, good=nodes[1003]: (
            fail(message) if "train" in message.metadata.message_type else good(message)
        )

    with pytest.raises(RunError, match=r"9 of 10 .* Nothing was released"):
        run(change_nodes=break_one)
    names = {path.name for path in (tmp_path / "runs" / "it").iterdir()}
    assert not {"statistics.safetensors", "model.safetensors"} & names
    directory = run("enough", change_nodes=break_one, min_clients=9)
    assert summary(directory)["clients_counted"] == 9


def test_the_reason_of_a_refusal_is_not_written_down(run, send_statistics):
    """It may quote a sum, and a single client's at that."""

    def too_large(nodes):
        Z, y, good = np.full((2, 64), 9.0), np.zeros(2, dtype=int), nodes[1003]
        nodes[1003] = lambda message: (
            send_statistics(message, Z, y, 10, form="dense")
            if "train" in message.metadata.message_type
            else good(message)
        )

    directory = run(change_nodes=too_large, min_clients=9)
    lines = (directory / "ledger.jsonl").read_text().splitlines()
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
def test_with_hardly_any_noise_it_is_the_plain_solution(run, settings):
    directory = run(dp_epsilon=1e9, ridge_lambda=0.5, **settings)
    model = load_model(directory / "model.safetensors")
    stats = exact_statistics(model.feature_map)
    if settings.get("method") == "fedncm":
        expected = stats.b / stats.b.norm(dim=0)
    else:
        expected = solve_ridge(
            stats, 0.5, intercept=bool(settings.get("fit_intercept"))
        )
    assert float((model.W - expected).norm() / expected.norm()) < 0.05
    assert summary(directory)["num_samples"] == pytest.approx(stats.n, abs=3)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"upload": "factor"}, "upload must be 'dense' with dp-epsilon, got 'factor'"),
        ({"upload-dtype": "float32"}, "upload-dtype must be 'float64'"),
        ({"rf-sigma": "auto", "method": "fed3r-rf"}, "rf-sigma must be a number"),
        ({"temperature": "auto"}, "temperature must be a number with dp-epsilon"),
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
def test_settings_that_would_undo_the_privacy_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Config.from_run_config(DEFAULTS | PRIVATE | settings)


def test_a_saved_release_can_be_solved_and_audited_but_not_changed(run, capsys):
    directory = run()
    W = load_model(directory / "model.safetensors").W
    assert cli.main(["solve", str(directory)]) == 0
    solved = load_model(directory / "model.safetensors")
    torch.testing.assert_close(solved.W, W)  # auto is the size of the noise here, too
    assert cli.main(["audit", str(directory)]) == 0
    assert cli.main(["forget", str(directory), "3"]) != 0
    assert "without differential privacy" in capsys.readouterr().err
