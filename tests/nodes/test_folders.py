"""Folders of nodes: each layout gives the same, and what can't heal is asked once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main as fed3r
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.errors import RunError
from tests.harness.awkward import GREY, save, turned, twelve_bits
from tests.harness.nodes import Federation
from tests.harness.pixels import LAM, assert_close

# Class, part and name of each image; "upside down" is one that EXIF turns.
TABLE = [
    ("ape", "train", "upside down.png"),
    ("bee", "train", "1.png"),
    ("ape", "test", "upside down, too.png"),
    ("bee", "test", "2.png"),
]


def picture(name: str) -> bytes:
    return turned(3) if "upside" in name else turned(5)


def as_folders(root: Path) -> None:
    for label, part, name in TABLE:
        path = root / part / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(name))


def as_table(root: Path, delimiter: str = ",", encoding: str = "utf-8") -> None:
    lines = [delimiter.join(("path", "label", "split"))]
    (root / "pictures").mkdir(parents=True)
    for label, part, name in TABLE:
        (root / "pictures" / name).write_bytes(picture(name))
        cell = f'"pictures/{name}"'
        lines.append(delimiter.join((cell, label, part)))
    (root / "labels.csv").write_text("\n".join(lines) + "\n", encoding=encoding)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "folders": as_folders,
    "commas": as_table,
    "semicolons": lambda root: as_table(root, ";"),
    "byte order mark": lambda root: as_table(root, ";", "utf-8-sig"),
}


@pytest.mark.parametrize("dataset", ["local", "imagefolder"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_trained_on_evaluated_and_predicted(
    federation: Federation,
    layout: str,
    dataset: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = federation.folder("x")
    LAYOUTS[layout](folder)
    if dataset == "local":
        outcome = federation.run(["x"])
        assert outcome.summary["client_test_images"] == 2
    else:
        given = {"dataset": dataset, "data_path": str(folder)}
        grid = federation.make_grid([], **given)
        federation.connect(5, {"partition-id": 0, "num-partitions": 1})
        outcome = federation.run(grid=grid)
    Z = torch.tensor(np.stack([GREY.reshape(-1)] * 2) / np.float32(255))
    stats = RidgeStatistics.of(Z, torch.tensor([0, 1]), 2)
    assert_close(outcome.weights, solve_ridge(stats, LAM), 1e-9)
    assert outcome.summary["accuracy"] == 0.5  # they are all one picture
    (image,) = folder.rglob("upside down.png")
    capsys.readouterr()
    assert fed3r(["predict", str(outcome.directory), str(image)]) == 0
    score = float((Z[:1].double() @ outcome.weights)[0, 0])
    assert f"({score:.3f})" in capsys.readouterr().out


def test_a_home_is_found_at_nodes_and_at_the_server(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_table(federation.folder("x"))
    federation.add_images(federation.home / "server", ("ape", "bee", "bee"))
    monkeypatch.setenv("HOME", str(federation.home))
    grid = federation.make_grid([], data_path="~/server")
    federation.connect(5, {"data-path": "~/x/labels.csv", "client-id": "x"})
    outcome = federation.run(grid=grid)
    assert outcome.summary["num_samples"] == 2
    assert outcome.summary["accuracy"] is not None


def latin(folder: Path) -> None:
    (folder / "labels.csv").write_bytes("path,label\n1.png,Käse\n".encode("latin-1"))


def not_text(folder: Path) -> None:
    below = os.path.join(os.fsencode(folder), b"K\xe4se")
    os.mkdir(below)
    with open(os.path.join(below, b"1.png"), "wb") as file:
        file.write(turned(3))


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (latin, r"labels\.csv must be CSV in UTF-8, got the byte 0xe4, as Latin-1 has"),
        (not_text, r"Names of classes must be UTF-8, got b'K\\xe4se'"),
    ],
)
def test_data_that_will_not_heal_is_asked_for_once(
    federation: Federation, break_it: Callable[[Path], None], sentence: str
) -> None:
    break_it(federation.folder("clinic-b"))
    with pytest.raises(RunError, match=f"Client clinic-b: .*{sentence}"):
        federation.run(["clinic-a", "clinic-b"], max_retries=3)
    assert federation.grid.log.count((108, "query.hello")) == 1


def test_a_drive_that_comes_back_is_asked_for_again(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, left = os.scandir, [2]

    def away(path: Any = ".") -> Any:
        if left[0] and os.fspath(path) == str(federation.folder("clinic-b")):
            left[0] -= 1
            raise OSError(5, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", away)
    clients = ["clinic-a", "clinic-b"]
    outcome = federation.run(clients, max_retries=3)
    federation.assert_pooled(outcome, clients)
    assert federation.grid.log.count((108, "query.hello")) == 3


def test_links_and_loops_are_not_followed_in_a_test_set(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    folder = federation.folder("x")
    as_folders(folder)
    test = folder / "test" / "ape"
    (test / "loop").symlink_to(test, target_is_directory=True)
    (folder / "test" / "owl").symlink_to(federation.folder("clinic-b"))
    (test / "outside.png").symlink_to(
        next(federation.folder("clinic-b").rglob("*.png"))
    )
    (test / "twice.png").symlink_to(test / "upside down, too.png")
    outcome = federation.run(["x"])
    assert outcome.summary["client_test_images"] == 3
    assert outcome.model.class_names == ("ape", "bee")
    assert "3 others are passed over" in caplog.text


def low_values() -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return a picture of 12 bits in 16, and what it looks like: dark."""
    return twelve_bits(), np.rint(np.rint(GREY / 255 * 4095) / 257)


def large_jpeg() -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return a picture of 64 megapixels, and what it looks like at 8 x 8."""
    columns = np.array([30, 60, 240, 120, 150, 0, 210, 90], np.uint8)
    picture = Image.fromarray(np.tile(np.repeat(columns, 1000), (8000, 1)))
    small = picture.resize((8, 8), Image.Resampling.BILINEAR)
    return save(picture, "jpeg", quality=95), np.asarray(small)


@pytest.mark.parametrize(("make", "rounding"), [(low_values, 1e-6), (large_jpeg, 1e-2)])
def test_a_picture_is_read_alike_everywhere(
    federation: Federation,
    make: Callable[[], tuple[bytes, np.ndarray[Any, Any]]],
    rounding: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, grey = make()
    folder = federation.folder("x")
    for part in ("train", "test"):
        (folder / part / "ape").mkdir(parents=True)
        (folder / part / "ape" / "1.image.tif").write_bytes(content)
    (folder / "train" / "bee").mkdir()
    (folder / "train" / "bee" / "1.png").write_bytes(turned(3))
    outcome = federation.run(["x"])
    Z = torch.tensor(np.stack([grey.reshape(-1), GREY.reshape(-1)]) / np.float32(255))
    W = solve_ridge(RidgeStatistics.of(Z, torch.tensor([0, 1]), 2), LAM)
    assert_close(outcome.weights, W, rounding)
    scores = (Z[:1].double() @ W)[0]
    assert outcome.summary["accuracy"] == float(scores[0] > scores[1])
    capsys.readouterr()
    image = str(folder / "test" / "ape" / "1.image.tif")
    assert fed3r(["predict", str(outcome.directory), image]) == 0
    said = re.search(r"ape \((.+?)\)", capsys.readouterr().out)
    assert said and float(said[1]) == pytest.approx(float(scores[0]), abs=0.01)


def test_an_empty_test_folder_is_no_test_set(federation: Federation) -> None:
    as_folders(federation.folder("x"))
    for path in (federation.folder("x") / "test").rglob("*.png"):
        path.unlink()
    for label in ("ape", "bee"):
        (federation.folder("x") / "test" / label).rmdir()
    outcome = federation.run(["x"])
    assert outcome.summary["num_samples"] == 2
    assert outcome.summary["accuracy"] is None
