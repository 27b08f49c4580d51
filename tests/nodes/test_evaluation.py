"""Accuracy without a data set: the nodes' test images, or a folder at the server."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main as fed3r
from fed3r_app.errors import RunError
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.report import summary_table
from tests.harness.nodes import ALL, Federation
from tests.harness.pixels import assert_close

PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "clinic-x": {"train": ("cat", "cat", "dog"), "test": ("dog",) * 9},
    "clinic-y": {"train": ("owl", "dog"), "test": ("cat", "owl")},
    "clinic-z": {"train": ("owl", "cat")},
}


@pytest.fixture
def parted(federation: Federation) -> Federation:
    for client, parts in PARTS.items():
        for part, class_names in parts.items():
            federation.add_images(federation.folder(client) / part, class_names)
    return federation


def count_correct(model: Any, folders: Any) -> Any:
    """Return how many images of some folders a model gets right, and how many are."""
    correct = total = 0
    for folder in folders:
        for path in folder.rglob("*.png"):
            z = np.asarray(Image.open(path), dtype=np.float32).reshape(1, -1) / 255
            best = int(model.scores(torch.from_numpy(z)).argmax())
            correct += model.class_names[best] == path.parent.name
            total += 1
    return correct, total


def test_the_nodes_test_images_are_counted_together(parted: Federation) -> None:
    outcome = parted.run(PARTS)
    summary = outcome.summary
    folders = [parted.folder(client) / "test" for client in PARTS]
    correct, total = count_correct(outcome.model, folders)
    assert total == summary["client_test_images"] == 11
    assert summary["accuracy"] == summary["client_accuracy"] == correct / total


def test_the_picture_shows_what_the_nodes_measured(parted: Federation) -> None:
    path = parted.run(PARTS).directory / "curves.png"
    with Image.open(path) as image:
        red, _, blue = np.moveaxis(np.asarray(image.convert("RGB"), dtype=int), 2, 0)
    assert (blue > red + 80).any(), "nothing is drawn"


def test_three_exchanges_are_all_it_takes(parted: Federation) -> None:
    parted.run(PARTS)
    # Only nodes with test images evaluate.
    kinds = ("query.hello", "train.statistics", "evaluate.statistics")
    assert parted.grid.asked == dict(zip(kinds, (3, 3, 2), strict=True))


def test_test_images_are_not_trained_on(parted: Federation) -> None:
    outcome = parted.run(PARTS)
    train = [parted.folder(client) / "train" for client in PARTS]
    W = parted.pooled(train, ["cat", "dog", "owl"])
    assert_close(outcome.model.W, W)
    assert outcome.summary["num_samples"] == 7


def test_a_folder_at_the_server_gives_an_accuracy_too(federation: Federation) -> None:
    held_out = federation.home / "held-out"
    federation.add_images(held_out, ("cat", "yak", "owl", "elk"))
    outcome = federation.run(ALL, data_path=str(held_out))
    correct, total = count_correct(outcome.model, [held_out])
    assert outcome.summary["accuracy"] == correct / total


def test_test_images_of_a_class_that_nobody_has_are_refused(
    federation: Federation,
) -> None:
    held_out = federation.home / "held-out"
    federation.add_images(held_out, ("newt",))
    with pytest.raises(RunError, match=r"test images.*'newt'"):
        federation.run(ALL, data_path=str(held_out))


def test_without_test_images_the_training_images_are_asked_for_only_on_request(
    federation: Federation,
) -> None:
    plain = federation.run(ALL).summary
    asked = federation.run(ALL, client_evaluation=True, run_name="asked").summary
    assert "client_accuracy" not in plain
    assert asked["client_accuracy"] == 1.0
    assert asked["accuracy"] is None, "those images are not held out"


def test_a_client_missing_in_the_evaluation_is_named_and_counted(
    parted: Federation,
) -> None:
    grid = parted.make_grid(PARTS, round_timeout=0.5)
    first = min(grid.get_node_ids())
    grid.silent = lambda node, kind: node == first and kind == "evaluate.statistics"
    summary = parted.run(grid=grid).summary
    assert summary["not_evaluated"] == ["clinic-x"]
    assert summary["client_test_images"] == 2, "clinic-y's"
    table = summary_table(summary)
    assert re.search(r"accuracy at clients +\S+ % on 1 of 2 clients\n", table)
    assert re.search(r"not evaluated +1: clinic-x\n", table)


def clients_accuracy(summary: Any) -> Any:
    assert summary["accuracy"] == summary["client_accuracy"]
    return summary["accuracy"], summary["client_test_images"]


@pytest.mark.parametrize("kept", [True, False])
def test_the_nodes_measure_again_once_one_is_forgotten(
    parted: Federation, kept: bool
) -> None:
    parted.run(PARTS, keep_contributions=kept)
    outcome = parted.run(PARTS, resume=True, forget="clinic-y", keep_contributions=kept)
    correct, total = count_correct(outcome.model, [parted.folder("clinic-x") / "test"])
    assert outcome.summary["forgotten_clients"] == ["clinic-y"]
    assert clients_accuracy(outcome.summary) == (correct / total, total)


def test_the_nodes_measure_again_once_one_is_replaced(parted: Federation) -> None:
    parted.run(PARTS, keep_contributions=True)
    parted.add_images(parted.folder("clinic-z") / "train", ["dog"] * 3, seed=1)
    outcome = parted.run(
        PARTS, resume=True, replace="clinic-z", keep_contributions=True
    )
    assert outcome.summary["num_samples"] == 10
    folders = [parted.folder(client) / "test" for client in PARTS]
    correct, total = count_correct(outcome.model, folders)
    assert clients_accuracy(outcome.summary) == (correct / total, total)


def test_a_command_without_nodes_says_nothing_of_their_test_images(
    parted: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    run = parted.run(PARTS).directory
    assert fed3r(["solve", str(run), "--ridge-lambda", "3"]) == 0
    assert "not known: no test images here" in capsys.readouterr().out
    summary = RunDirectory(run).read_summary()
    assert summary["accuracy"] is None and summary["client_test_images"] is None
    again = parted.run(PARTS, resume=True).summary  # as `fed3r add` does
    assert again["client_test_images"] == 11 and again["accuracy"] is not None


def test_test_images_that_are_gone_do_not_keep_a_run_from_being_changed(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    held_out = federation.home / "held-out"
    federation.add_images(held_out, ("cat", "yak", "owl", "elk"))
    run = federation.run(ALL, data_path=str(held_out), keep_contributions=True)
    held_out.rename(federation.home / "elsewhere")
    for command in (
        ["solve", str(run.directory)],
        ["forget", str(run.directory), ALL[0]],
    ):
        assert fed3r(command) == 0
        assert caplog.text.count("not measured again: data-path must") == 1
        caplog.clear()
        assert fed3r(["audit", str(run.directory)]) == 0
    assert run.summary["accuracy"] is None and run.summary["clients"] == 3
