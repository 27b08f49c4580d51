"""Awkward folders at nodes: what they hold is read right, by everybody alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main as fed3r
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.errors import RunError
from tests.harness.awkward import BAD, GREY, SAME, save, twelve_bits
from tests.harness.nodes import Federation
from tests.harness.pixels import LAM, SIZE, assert_close
from tests.harness.runs import Outcome

OTHER = np.random.default_rng(1).integers(256, size=(SIZE, SIZE), dtype=np.uint8)
PLAIN = save(Image.fromarray(OTHER), "png")
CLASSES = ("ape", "bee")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def features(*pictures: np.ndarray) -> torch.Tensor:
    """Return what the pixels backbone makes of pictures that are read right."""
    rows = [picture.reshape(-1) / np.float32(255) for picture in pictures]
    return torch.tensor(np.array(rows, dtype=np.float32))


def classifier(Z: torch.Tensor, y: list[int]) -> torch.Tensor:
    stats = RidgeStatistics.of(Z, torch.tensor(y), len(CLASSES))
    return solve_ridge(stats, LAM)


def run_on(federation: Federation, train: str, content: bytes) -> Outcome:
    """Run on a node that trains on an awkward image and tests with it."""
    awkward = {f"train/ape/{train}": content, f"test/ape/{train}": content}
    plain = {"train/bee/b.png": PLAIN, "test/bee/b.png": PLAIN}
    write(federation.folder("x"), {**awkward, **plain})
    return federation.run(["x"])


@pytest.mark.parametrize("name", SAME)
def test_an_awkward_image_is_trained_on_tested_with_and_predicted(
    federation: Federation, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_on(federation, name, SAME[name]())
    W = classifier(features(GREY, OTHER), [0, 1])
    assert_close(outcome.weights, W, 1e-12)
    assert outcome.summary["unreadable_images"] == 0
    assert outcome.summary["client_test_images"] == 2
    assert outcome.summary["accuracy"] == 1.0  # there are fewer images than features
    capsys.readouterr()
    image = federation.folder("x") / "test" / "ape" / name
    assert fed3r(["predict", str(outcome.directory), str(image), "--top", "1"]) == 0
    score = float((features(GREY).double() @ W)[0, 0])
    assert capsys.readouterr().out == f"{image}: ape ({score:.3f})\n"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_skipped_listed_and_counted(
    federation: Federation,
    name: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        outcome = run_on(federation, name, BAD[name][0]())
    W = classifier(features(OTHER), [1])
    assert_close(outcome.weights[:, 1], W[:, 1], 1e-12)
    summary = outcome.summary
    assert (summary["num_samples"], summary["unreadable_images"]) == (1, 1)
    assert (summary["accuracy"], summary["client_test_images"]) == (1.0, 1)
    skipped = [r.getMessage() for r in caplog.records if "Skipped" in r.getMessage()]
    assert sum(f"train/ape/{name} must be a readable" in line for line in skipped) == 1
    assert sum(f"test/ape/{name} must be a readable" in line for line in skipped) == 1
    # Nothing that left the node names the file.
    sent = "".join(str(each.reply) for each in outcome.exchanges)
    assert name not in sent and "ape" in sent
    capsys.readouterr()
    bad, good = (
        federation.folder("x") / "test" / p for p in (f"ape/{name}", "bee/b.png")
    )
    run = str(outcome.directory)
    assert fed3r(["predict", run, str(bad), str(good), "--top", "1"]) == 1
    shown = capsys.readouterr()
    assert f"{bad} must be a readable image, got: " in shown.err
    assert f"{good}: bee" in shown.out


def test_four_awkward_folders_give_the_classifier_of_the_pooled_images(
    federation: Federation,
) -> None:
    awkward_federation(federation)
    outcome = federation.run(AWKWARD, max_unreadable=0.5)
    kinds = len(SAME)
    Z = features(*[GREY] * kinds, *[OTHER] * 4)
    assert_close(outcome.weights, classifier(Z, [0] * kinds + [1] * 4), 1e-9)
    assert outcome.summary["num_samples"] == kinds + 4
    assert outcome.summary["unreadable_images"] == 4


def test_the_default_backbone_sees_all_of_them_alike(
    federation: Federation, tmp_path: Path
) -> None:
    awkward_federation(federation)
    clean = tmp_path / "clean"
    for i in range(len(SAME)):
        write(clean, {f"ape/{i}.png": SAME["plain.png"]()})
    for i in range(4):
        write(clean, {f"bee/{i}.png": PLAIN})
    # At 32 px features of another batch size differ by 2e-5, here by a tenth of that.
    settings: dict[str, Any] = {"backbone": "mobilenet_v2", "image_size": 96}
    settings["max_unreadable"] = 0.5
    outcome = federation.run(AWKWARD, **settings)
    pooled = federation.run(["clean"], run_name="clean", **settings)
    assert outcome.summary["num_samples"] == pooled.summary["num_samples"]
    assert_close(outcome.weights, pooled.weights, 1e-5)


AWKWARD = ("folders", "parts", "table", "links")


def awkward_federation(federation: Federation) -> None:
    """Give four nodes the picture in all its forms, and bad files, in four layouts."""
    names = list(SAME)
    parts = {client: names[i::4] for i, client in enumerate(AWKWARD)}
    files = {
        client: {f"ape/{name}": SAME[name]() for name in parts[client]}
        | {"bee/b.png": PLAIN}
        for client in AWKWARD
    }
    write(federation.folder("folders"), files["folders"] | {"ape/0.jpg": b""})
    bad = {
        f"train/ape/{name}": BAD[name][0]() for name in ("truncated.jpg", "page.jpg")
    }
    train = {f"train/{name}": content for name, content in files["parts"].items()}
    write(federation.folder("parts"), train | bad)
    write(federation.folder("table") / "deep", files["table"])
    lines = [f"deep/ape/{name};ape" for name in parts["table"]]
    rows = ["path;label", *lines, "deep/bee/b.png;bee", "deep/gone.png;bee"]
    table = "\ufeff" + "\r\n".join(rows) + "\r\n"
    (federation.folder("table") / "labels.csv").write_text(table, encoding="utf-8")
    links = federation.folder("links")
    write(links, files["links"])
    (links / "ape" / "loop").symlink_to(links, target_is_directory=True)
    (links / "loop").symlink_to(links, target_is_directory=True)
    (links / "ape" / "outside.png").symlink_to(federation.folder("folders") / "ape")
    secret = federation.home / "secret.png"
    secret.write_bytes(PLAIN)
    (links / "bee" / "secret.png").symlink_to(secret)


def test_links_are_followed_within_the_folder_only(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    awkward_federation(federation)
    links = federation.folder("links")
    (links / "bee" / "again.png").symlink_to(links / "bee" / "b.png")
    with caplog.at_level(logging.WARNING):
        outcome = federation.run(["links"])
    assert outcome.summary["num_samples"] == len(list(SAME)[3::4]) + 2
    assert "links are followed to files within the folder only" in caplog.text
    assert "4 others are passed over" in caplog.text


def test_too_many_bad_files_are_an_error_of_their_client_that_is_not_retried(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    bad = federation.folder("clinic-a") / "cat"
    write(bad, {"1.jpg": b"", "2.jpg": b"x", "3.jpg": b"<html>"})
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RunError, match=r"clinic-a .* max-unreadable = 0\.01"),
    ):
        federation.run(["clinic-a", "clinic-b"], max_retries=3)
    assert federation.grid.asked["train.statistics"] == 2
    listed = {f"{bad / name} must be" for name in ("1.jpg", "2.jpg", "3.jpg")}
    assert all(sentence in caplog.text for sentence in listed)
    assert "3 of 6 images can't be read" in caplog.text
    assert "Traceback" not in caplog.text
    sent = [str(each.reply) for each in federation.grid.exchanges]
    assert not any(name in reply for reply in sent for name in ("1.jpg", "2.jpg"))
    outcome = federation.run(
        ["clinic-a", "clinic-b"], run_name="rest", max_unreadable=0.6
    )
    assert outcome.summary["unreadable_images"] == 3
    federation.assert_pooled(outcome, ["clinic-a", "clinic-b"])


def test_after_mending_the_files_the_run_is_resumed(federation: Federation) -> None:
    bad = federation.folder("clinic-a") / "cat"
    write(bad, {"1.png": b"", "2.png": b"x", "3.png": b"<html>"})
    clients = ["clinic-a", "clinic-b", "clinic-c"]
    with pytest.raises(RunError, match="resume=true"):
        federation.run(clients)
    write(bad, dict.fromkeys(("1.png", "2.png", "3.png"), PLAIN))
    outcome = federation.run(clients, resume=True)
    federation.assert_pooled(outcome, clients)


def test_with_sums_protected_nothing_is_said_of_images(federation: Federation) -> None:
    for client in ("a", "b", "c", "d"):
        for part in ("train", "test"):
            federation.add_images(federation.folder(client) / part, CLASSES * 2)
    bad = {"train/ape/0.jpg": b"", "train/ape/1.jpg": os.urandom(9)}
    write(federation.folder("a"), bad)
    settings: dict[str, Any] = {
        "privacy": "secagg",
        "secagg_group": 4,
        "max_unreadable": 0.5,
    }
    settings["labels"] = "ape,bee"
    outcome = federation.run(["a", "b", "c", "d"], **settings)
    assert outcome.summary["unreadable_images"] == 0
    assert outcome.summary["held_out_classes"] == 0
    for each in outcome.exchanges:
        keys = [key for c in each.reply.config_records.values() for key in c]
        assert not {"unreadable", "held-out-classes", "num-test-images"} & set(keys)


def test_a_picture_of_another_range_is_read_as_the_run_says(
    federation: Federation,
) -> None:
    write(federation.folder("x"), {"ape/1.png": twelve_bits(), "bee/b.png": PLAIN})
    outcome = federation.run(["x"], intensity="0-100")
    # OTHER has 8 bits: percentiles are for images of more.
    assert_close(outcome.weights, classifier(features(GREY, OTHER), [0, 1]), 1e-12)
    assert outcome.model.backbone.intensity == "0-100"
