"""Short runs on the real engine: the default, the laws, and what goes wrong."""

from typing import Any

import pytest
import torch

from tests.harness.pixels import EXACT, PIXELS, assert_close, pixels, pooled
from tests.harness.runs import FILES

SUMMARY_KEYS = {
    *("method", "accuracy", "rounds", "clients", "clients_counted", "ridge_lambda"),
    *("upload_bytes", "download_bytes", "paper_upload_bytes", "seconds"),
}


@pytest.fixture(scope="module")
def default_run(engine: Any) -> Any:
    return engine.run_default("default", 10)


def test_the_default_run_gives_a_good_classifier(default_run: Any) -> None:
    assert default_run.completed, default_run.output
    summary = default_run.summary
    assert summary["accuracy"] >= 0.94
    assert summary["clients_counted"] == summary["clients"] == 10
    assert summary["rounds"] == 5
    assert summary["upload_bytes"] < summary["paper_upload_bytes"]


def test_the_default_run_leaves_all_its_files(default_run: Any) -> None:
    left = {path.name for path in default_run.directory.iterdir()}
    # Of sums that were saved on the way, on a slow machine.
    assert left - {"statistics.earlier.safetensors"} == FILES
    assert SUMMARY_KEYS <= default_run.summary.keys()
    assert [line["round"] for line in default_run.metrics] == [1, 2, 3, 4, 5]


def test_the_default_run_says_where_its_results_are(default_run: Any) -> None:
    assert f"Results: {default_run.directory}" in default_run.output
    assert "Traceback" not in default_run.output


def test_a_second_run_extracts_nothing_whatever_its_method(
    engine: Any, default_run: Any
) -> None:
    # Whatever is extracted is written to the cache at once.
    caches = sorted(engine.cache.glob("mobilenet_v2-*/features.bin"))
    before = [path.stat().st_mtime_ns for path in caches]
    again = engine.run("again", 10, method="fedncm", partition="iid")
    assert again.completed, again.output
    assert len(caches) == 2  # training and test images
    assert sorted(engine.cache.glob("mobilenet_v2-*/features.bin")) == caches
    assert [path.stat().st_mtime_ns for path in caches] == before
    assert 0.7 < again.summary["accuracy"] < default_run.summary["accuracy"]
    assert again.summary["num_samples"] == default_run.summary["num_samples"]


@pytest.mark.parametrize(
    ("partition", "num_clients", "kappa"),
    [("iid", 5, 0), ("dirichlet", 8, 3)],  # by-class: where a client raises, below
)
def test_any_split_and_any_cohort_give_the_pooled_solution(
    engine: Any, partition: Any, num_clients: int, kappa: Any
) -> None:
    settings = EXACT | {"partition": partition, "clients-per-round": kappa}
    outcome = engine.run(f"split-{partition}", num_clients, **settings)
    assert outcome.completed, outcome.output
    assert outcome.summary["clients_counted"] == num_clients
    assert_close(outcome.weights, pooled())


def test_float32_factors_give_the_same_predictions(engine: Any) -> None:
    settings = EXACT | {"upload-dtype": "float32"}
    outcome = engine.run("float32", 4, client_evaluation=True, **settings)
    assert outcome.completed, outcome.output
    assert_close(outcome.weights, pooled(), 1e-5)
    Z, _ = pixels(part="test")
    expected = (Z.double() @ pooled()).argmax(dim=1)
    assert torch.equal(outcome.model.scores(Z).argmax(1), expected)
    # The clients' own images are the training images.
    Z, y = pixels()
    right = outcome.model.scores(Z).argmax(1) == y
    assert outcome.summary["client_accuracy"] == float(right.double().mean())


def test_random_features_find_their_own_width(engine: Any) -> None:
    outcome = engine.run("rf", 4, method="fed3r-rf", rf_dim=300, **PIXELS)
    assert outcome.completed, outcome.output
    assert outcome.summary["accuracy"] > 0.93  # 0.93 is what the pixels give
    assert outcome.model.feature_map.rf_sigma == outcome.summary["rf_sigma"]


def test_a_client_that_raises_is_asked_again(engine: Any, faulty_app: Any) -> None:
    app = faulty_app("raise OSError('The disk is gone.')")
    outcome = engine.run("raises", 4, app=app, partition="by-class", **EXACT)
    assert outcome.completed, outcome.output
    assert (app.parent / "struck").exists()
    assert "Client 1 failed" in outcome.output
    assert outcome.summary["clients_counted"] == 4
    assert outcome.summary["rounds"] == 3  # two, and one for who failed
    assert_close(outcome.weights, pooled())


def test_a_typo_does_not_start_a_run(engine: Any) -> None:
    outcome = engine.run("typo", 2, ridge_lamda=0.1)
    assert not outcome.completed
    assert "Invalid run configuration" in outcome.output  # Flower's own word
    assert not outcome.directory.exists()


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("lambda", {"ridge_lambda": -1}, "ridge-lambda must be 'auto' or a number > 0"),
        ("path", {"dataset": "imagefolder", "data_path": "/no"}, "data-path must be"),
    ],
)
def test_a_wrong_setting_fails_the_run_with_a_sentence(
    engine: Any, name: str, settings: Any, sentence: str
) -> None:
    outcome = engine.run(name, 2, **settings)
    assert not outcome.completed
    assert sentence in " ".join(outcome.output.split())
    assert not (outcome.directory / "summary.json").exists()
