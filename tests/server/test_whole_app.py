"""The real ServerApp and ClientApp in one process: odd data, damage, wrong settings.

Each ends in the right classifier or in a sentence, never in a wrong classifier.
"""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from PIL import Image

from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import load_model
from fed3r_app.server_app import RunError, main

SIZE, LAM = 8, 0.5
# As exact as can be, so that a tolerance says something.
EXACT = {
    "backbone": "pixels",
    "image-size": SIZE,
    "ridge-lambda": LAM,
    "upload-dtype": "float64",
    "clients-per-round": 3,
    "round-timeout": 20.0,
    "max-retries": 1,
}


@pytest.fixture
def run(tmp_path, monkeypatch, make_grid, app_node):
    """Run the whole app with some clients; return the directory of the run."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))

    def start(num_clients, change_nodes=None, **settings):
        changes = {key.replace("_", "-"): value for key, value in settings.items()}
        run_config = DEFAULTS | EXACT | {"run-name": "it"} | changes
        nodes = {
            1000 + 7 * i: app_node(
                client_app,
                run_config,
                {"partition-id": i, "num-partitions": num_clients},
                1000 + 7 * i,
            )
            for i in range(num_clients)
        }
        if change_nodes:
            change_nodes(nodes)
        context = Context(1, 1, {}, RecordDict(), run_config)
        main(make_grid(nodes), context)
        return tmp_path / "runs" / "it"

    return start


@pytest.fixture
def folder(tmp_path):
    """Make an image folder: bright on either side, and a class without images."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 3)):
        for side, name in enumerate(("left", "right")):
            path = tmp_path / "images" / part / name
            path.mkdir(parents=True)
            for i in range(count):
                grey = rng.uniform(0, 100, size=(SIZE, SIZE))
                grey[:, 4 * side : 4 * side + 4] += 100
                Image.fromarray(grey.astype(np.uint8)).save(path / f"{i}.png")
    (tmp_path / "images" / "train" / "unseen").mkdir()
    return tmp_path / "images"


def rounds_of(directory):
    return [line["round"] for line in RunDirectory(directory).read_metrics()]


def summary(directory):
    return json.loads((directory / "summary.json").read_text())


def pooled(dataset="digits", data_path="", rows=None):
    """Return the classifier of all the training images at one place."""
    data = load_dataset(dataset, data_path)
    rows = np.arange(len(data.train)) if rows is None else rows
    backbone = load_backbone(BackboneSpec("pixels", "packaged", SIZE))
    Z = extract_features(backbone, data.train, rows, device=torch.device("cpu"))
    y = torch.from_numpy(data.train.labels[rows])
    return solve_ridge(RidgeStatistics.of(Z, y, len(data.class_names)), LAM)


def assert_is(directory, W, tolerance=1e-9):
    got = load_model(directory / "model.safetensors").W
    assert float((got - W).norm() / W.norm()) <= tolerance


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "by-class"])
@pytest.mark.parametrize("kappa", [0, 1, 4])
def test_the_whole_app_gives_the_pooled_solution(run, partition, kappa):
    directory = run(10, partition=partition, clients_per_round=kappa)
    assert_is(directory, pooled())
    assert summary(directory)["clients_counted"] == 10
    assert summary(directory)["rounds"] == {0: 1, 1: 10, 4: 3}[kappa]


@pytest.mark.parametrize("upload", ["factor", "packed", "dense"])
def test_the_form_of_the_upload_does_not_show(run, upload):
    assert_is(run(4, upload=upload), pooled())


def test_float32_is_the_same_to_its_digits(run):
    assert_is(run(10, upload_dtype="float32"), pooled(), 1e-5)


def test_all_files_of_a_run_are_there(run):
    directory = run(3)
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "curves.png",
        "model.safetensors",
        "statistics.safetensors",
        "ledger.jsonl",
        ".lock",
    }
    assert rounds_of(directory) == [1]


def test_clients_without_images_are_counted_and_change_nothing(run, folder):
    directory = run(30, dataset="imagefolder", data_path=str(folder), partition="iid")
    assert summary(directory)["clients_counted"] == 30
    assert summary(directory)["num_samples"] == 12
    assert_is(directory, pooled("imagefolder", str(folder)))


def test_clients_with_one_image_each_give_the_pooled_solution(run, folder):
    directory = run(12, dataset="imagefolder", data_path=str(folder), partition="iid")
    assert_is(directory, pooled("imagefolder", str(folder)))


def test_a_class_that_nobody_has_is_named_and_never_predicted(run, folder):
    directory = run(2, dataset="imagefolder", data_path=str(folder), partition="iid")
    assert summary(directory)["absent_classes"] == ["unseen"]
    assert summary(directory)["accuracy"] == 1.0
    model = load_model(directory / "model.safetensors")
    unseen = model.class_names.index("unseen")
    assert not model.present[unseen]
    assert not model.W[:, unseen].any()


def test_a_set_without_test_images_has_no_accuracy(run, folder):
    (folder / "test").rename(folder / "elsewhere")
    directory = run(2, dataset="imagefolder", data_path=str(folder), partition="iid")
    assert summary(directory)["accuracy"] is None
    assert_is(directory, pooled("imagefolder", str(folder)))


def test_a_damaged_image_names_the_file_and_the_client(run, folder):
    (folder / "train" / "left" / "3.png").write_bytes(b"no image")
    with pytest.raises(RunError, match=r"1 of 2 clients were counted.*3\.png"):
        run(2, dataset="imagefolder", data_path=str(folder), partition="by-class")


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_cache_is_not_believed(run, tmp_path, damage):
    run(3, run_name="first")
    for path in (tmp_path / "cache").glob("*/features.bin"):
        data = bytearray(path.read_bytes())
        if damage == "truncated":
            data = data[: len(data) // 2 + 3]
        else:
            data[:: SIZE * SIZE] = bytes(len(data[:: SIZE * SIZE]))
        path.write_bytes(data)
    assert_is(run(3), pooled())


def test_weights_of_another_model_are_refused(run, tmp_path):
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "wrong.pt")
    with pytest.raises(RunError, match=r"weights must be a state dict .*wrong\.pt"):
        run(
            2,
            backbone="mobilenet_v2",
            weights=str(tmp_path / "wrong.pt"),
            image_size=32,
        )


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
def test_wrong_settings_end_in_one_sentence(run, settings, sentence):
    with pytest.raises(RunError, match=sentence) as caught:
        run(3, **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_is_not_overwritten(run):
    run(2)
    with pytest.raises(RunError, match="already holds a run"):
        run(2)


def breaking(node_ids, fail, times):
    """Return what makes some nodes fail so many times when asked for statistics."""
    left = dict.fromkeys(node_ids, times)

    def change(nodes):
        def broken(node_id, good):
            def node(message):
                if "statistics" in message.metadata.message_type and left[node_id]:
                    left[node_id] -= 1
                    return fail(message, f"Node {node_id} is ill.")
                return good(message)

            return node

        for node_id in node_ids:
            nodes[node_id] = broken(node_id, nodes[node_id])

    return change


def test_a_client_that_fails_once_is_in_the_result(run, fail):
    directory = run(10, change_nodes=breaking([1007], fail, times=1))
    assert summary(directory)["status"] == "complete"
    assert_is(directory, pooled())


def test_a_client_that_stays_away_is_named_and_can_be_asked_later(run, tmp_path, fail):
    sentence = r"9 of 10 clients .* missing: 1\. Client 1: Node 1007 is ill\. What"
    with pytest.raises(RunError, match=sentence):
        run(10, change_nodes=breaking([1007], fail, times=9))
    directory = tmp_path / "runs" / "it"
    assert summary(directory)["status"] == "partial"
    assert summary(directory)["missing_clients"] == ["1"]
    run(10, resume=True)
    assert summary(directory)["status"] == "complete"
    assert summary(directory)["clients_counted"] == 10
    assert_is(directory, pooled())
    assert rounds_of(directory) == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_can_be_resumed_to_no_effect(run):
    before = summary(run(4))
    after = summary(run(4, resume=True))
    for key in ("accuracy", "rounds", "clients_counted", "num_samples"):
        assert after[key] == before[key]


def test_a_run_is_not_resumed_with_other_data_or_features(run):
    run(4)
    with pytest.raises(RunError, match="partition must be 'by-class', as in the run"):
        run(4, resume=True, partition="iid")
    with pytest.raises(RunError, match="clients must be 4"):
        run(5, resume=True)


def test_enough_clients_are_enough(run, fail):
    directory = run(10, change_nodes=breaking([1007], fail, times=9), min_clients=9)
    assert summary(directory)["status"] == "partial"
    assert summary(directory)["missing_clients"] == ["1"]


def test_nobody_counted_is_an_error_without_a_model(run, tmp_path, fail):
    with pytest.raises(RunError, match="0 of 2 clients were counted; missing: 0, 1"):
        run(2, change_nodes=breaking([1000, 1007], fail, times=9))
    assert not (tmp_path / "runs" / "it" / "model.safetensors").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_simulated_client_can_be_forgotten_and_the_run_goes_on(run, keep):
    directory = run(10, keep_contributions=keep)
    parts = split_rows(load_dataset("digits", ""), "by-class", 10, alpha=0.1, seed=0)
    others = np.concatenate([rows for i, rows in enumerate(parts) if i != 3])
    for settings in ({"forget": "3"}, {"forget": "3"}, {}):
        directory = run(10, keep_contributions=keep, resume=True, **settings)
        assert_is(directory, pooled(rows=others))
    assert summary(directory)["clients_counted"] == summary(directory)["clients"] == 9
    assert len(summary(directory)["absent_classes"]) == 1


REPLACE = {"sampling": "with-replacement", "clients_per_round": 2}


def test_rounds_with_replacement_that_run_out_give_a_partial_result(run):
    directory = run(10, **REPLACE, statistics_rounds=3)
    result = summary(directory)
    assert (result["status"], result["rounds"]) == ("partial", 3)
    assert 2 <= result["clients_counted"] <= 6


def test_too_few_clients_after_the_last_round_are_an_error_if_asked_for(run):
    with pytest.raises(RunError, match="clients were counted"):
        run(10, **REPLACE, statistics_rounds=2, min_clients=8)


def test_more_rounds_go_on_where_the_others_stopped(run):
    run(10, **REPLACE, statistics_rounds=2)
    directory = run(10, **REPLACE, statistics_rounds=0, resume=True)
    assert summary(directory)["status"] == "complete"
    assert_is(directory, pooled())
    whole = run(10, **REPLACE, run_name="whole")
    assert summary(whole.parent / "whole")["rounds"] == summary(directory)["rounds"]


def test_counted_clients_without_images_end_in_a_sentence(run, folder):
    with pytest.raises(RunError, match="have no images: there is nothing to solve"):
        run(
            400,
            dataset="imagefolder",
            data_path=str(folder),
            partition="iid",
            sampling="with-replacement",
            clients_per_round=1,
            statistics_rounds=1,
            seed=1,
        )


def test_random_features_choose_their_width_from_the_clients(run):
    directory = run(5, method="fed3r-rf", rf_dim=200, ridge_lambda="auto")
    result = summary(directory)
    assert result["feature_dim"] == 200
    assert result["accuracy"] > 0.9
    # 3 times the root mean square distance of the training features.
    backbone = load_backbone(BackboneSpec("pixels", "packaged", SIZE))
    train = load_dataset("digits", "").train
    Z = extract_features(
        backbone, train, np.arange(len(train)), device=torch.device("cpu")
    ).double()
    expected = 3 * (2 * Z.var(dim=0, correction=0).sum()).sqrt()
    assert result["rf_sigma"] == pytest.approx(float(expected), rel=1e-5)


def test_client_evaluation_is_the_accuracy_on_all_training_images(run):
    directory = run(5, client_evaluation=True)
    model = load_model(directory / "model.safetensors")
    train = load_dataset("digits", "").train
    Z = extract_features(
        load_backbone(BackboneSpec("pixels", "packaged", SIZE)),
        train,
        np.arange(len(train)),
        device=torch.device("cpu"),
    )
    right = model.scores(Z).argmax(dim=1) == torch.from_numpy(train.labels.copy())
    assert summary(directory)["client_accuracy"] == float(right.double().mean())


def test_the_intercept_and_the_class_means_run_too(run):
    accuracy = summary(run(5, fit_intercept=True, run_name="a").parent / "a")
    assert accuracy["feature_dim"] == SIZE * SIZE + 1
    means = summary(run(5, method="fedncm", run_name="b").parent / "b")
    assert means["ridge_lambda"] is None
    assert 0.7 < means["accuracy"] < accuracy["accuracy"]
