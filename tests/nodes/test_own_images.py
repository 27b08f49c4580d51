"""Nodes with images of their own: one label space, the pooled classifier."""

from typing import Any

import pytest

from fed3r_app.cli import main as fed3r
from fed3r_app.errors import RunError
from tests.harness.nodes import ALL, CLINICS, LABELS, Federation
from tests.harness.pixels import assert_close


def test_the_classifier_is_that_of_the_pooled_images(federation: Federation) -> None:
    outcome = federation.run(ALL)
    summary = outcome.summary
    assert outcome.model.class_names == LABELS
    federation.assert_pooled(outcome)
    assert summary["clients_counted"] == summary["clients"] == 4
    assert (summary["num_classes"], summary["num_samples"]) == (5, 12)
    assert summary["accuracy"] is None


def test_two_exchanges_with_everybody_at_once_are_all_it_takes(
    federation: Federation,
) -> None:
    federation.run(ALL)
    assert list(federation.grid.asked) == ["query.hello", "train.statistics"]
    assert len(federation.grid.log) == 8


@pytest.mark.parametrize("wave", [1, 3])
def test_waves_of_a_given_size_give_the_same(federation: Federation, wave: Any) -> None:
    outcome = federation.run(ALL, clients_per_round=wave)
    assert outcome.summary["rounds"] == -(-4 // wave)
    assert outcome.model.class_names == LABELS
    federation.assert_pooled(outcome)


def test_the_order_of_the_nodes_does_not_show(federation: Federation) -> None:
    one = federation.run(ALL)
    other = federation.run(ALL[::-1], run_name="other")
    assert one.model.class_names == other.model.class_names
    assert_close(one.model.W, other.model.W, 1e-12)


def test_the_model_predicts_class_names(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = federation.run(ALL)
    image = next((federation.folder("clinic-c") / "elk").iterdir())
    assert fed3r(["predict", str(outcome.directory), str(image), "--top", "5"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in LABELS)


def test_given_labels_fix_the_numbers_of_the_classes(federation: Federation) -> None:
    labels = ("yak", "cat", "newt", "dog", "elk", "owl")
    outcome = federation.run(ALL, labels=" yak,cat, newt,dog,elk,owl")
    model = outcome.model
    assert model.class_names == labels
    federation.assert_pooled(outcome)
    assert model.present.tolist() == [True, True, False, True, True, True]


def test_with_given_labels_no_node_tells_its_classes(federation: Federation) -> None:
    outcome = federation.run(ALL, labels="cat,dog,elk,owl,yak")
    hellos = outcome.grid.of("query.hello")
    told = [hello.reply.config_records["config"] for hello in hellos]
    assert sorted(each["client-id"] for each in told) == sorted(ALL)
    known = {"client-id", "num-partitions", "num-samples"}
    known |= {"code-version", "installed-version"}
    assert all(each.keys() == known for each in told)
    numbers = {each["client-id"]: each["num-samples"] for each in told}
    assert numbers == {client: len(names) for client, names in CLINICS.items()}


def test_a_class_that_is_not_among_the_labels_is_refused_by_name(
    federation: Federation,
) -> None:
    with pytest.raises(RunError, match=r"Client clinic-c: the classes .* 'elk'"):
        federation.run(ALL, labels="cat,dog,owl,yak")
    assert list(federation.grid.asked) == ["query.hello"]


def test_with_min_clients_the_others_go_on_without_it(federation: Federation) -> None:
    outcome = federation.run(ALL, labels="cat,dog,owl,yak", min_clients=3)
    assert outcome.model.class_names == ("cat", "dog", "owl", "yak")
    federation.assert_pooled(outcome, [c for c in ALL if c != "clinic-c"])
    assert "'elk'" in outcome.summary["refused"]["clinic-c"]


@pytest.mark.parametrize(
    ("node_config", "sentence"),
    [
        ({}, "must give data-path and client-id"),
        ({"client-id": "x"}, "must give data-path and client-id"),
        ({"data-path": "/data"}, "must give data-path and client-id"),
        ({"client-id": "x", "data-path": "/no/such"}, "Client x: data-path must be a"),
    ],
)
def test_a_node_without_data_is_told_in_a_sentence(
    federation: Federation, node_config: Any, sentence: str
) -> None:
    grid = federation.make_grid(ALL)
    federation.connect(999, node_config)
    with pytest.raises(RunError, match=f"failed in the first exchange: .*{sentence}"):
        federation.run(grid=grid)


def test_an_empty_folder_is_a_node_without_data(federation: Federation) -> None:
    (federation.folder("empty") / "cat").mkdir(parents=True)
    with pytest.raises(RunError, match="Client empty: data-path must hold images"):
        federation.run([*ALL, "empty"])


def test_a_node_s_images_are_not_passed_over_for_another_data_set(
    federation: Federation,
) -> None:
    grid = federation.make_grid(["clinic-a"], dataset="digits")
    federation.connect(101, federation.node_config("clinic-a") | {"num-partitions": 1})
    with pytest.raises(RunError, match="dataset must be 'local' to use the images"):
        federation.run(grid=grid)


def test_two_nodes_with_one_client_id_are_refused_in_a_sentence(
    federation: Federation,
) -> None:
    grid = federation.make_grid(ALL)
    federation.connect(999, federation.node_config("clinic-b"))
    with pytest.raises(RunError, match="client-id must be unique, got 'clinic-b'"):
        federation.run(grid=grid)
    assert list(grid.asked) == ["query.hello"]


@pytest.mark.parametrize("finetune", ["lp", "full"])
def test_fine_tuning_works_on_such_nodes(federation: Federation, finetune: Any) -> None:
    network = {"backbone": "mobilenet_v2", "weights": "random", "image_size": 32}
    settings: Any = network if finetune == "full" else {}
    federation.add_images(federation.folder("clinic-d") / "train", ("cat", "elk"))
    federation.add_images(federation.folder("clinic-d") / "test", ("cat", "owl"))
    clients = [*ALL[1:], "clinic-d"]
    outcome = federation.run(clients, finetune=finetune, rounds=2, **settings)
    summary = outcome.summary
    assert outcome.model.class_names == LABELS
    assert summary["client_test_images"] == 2
    assert summary["accuracy"] in (0.0, 0.5, 1.0)
    assert federation.grid.asked["train"] == 8
