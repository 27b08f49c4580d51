"""``fed3r demo-data``: the digits as folders of nodes, each image in one of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fed3r_app.cli import main
from fed3r_app.data.image_folder import load_imagefolder
from fed3r_app.data.packaged import load_digits


def pixels(images: Any) -> Any:
    """Return the images as a sorted list of (label, pixels)."""
    rows = range(len(images))
    return sorted(
        (int(images.labels[i]), np.asarray(images.image(i)).tobytes()) for i in rows
    )


def test_the_nodes_together_hold_the_digits_exactly_once(tmp_path: Path) -> None:
    nodes = ["a", "b", "c"]
    chosen = [word for node in nodes for word in ("--node", node)]
    assert main(["demo-data", str(tmp_path), *chosen]) == 0
    held = [load_imagefolder("demo", str(tmp_path / node)) for node in nodes]
    digits = load_digits()
    for part in ("train", "test"):
        together = []
        for data in held:
            names = np.array([int(name) for name in data.class_names])
            together += [
                (names[label], image) for label, image in pixels(getattr(data, part))
            ]
        assert sorted(together) == pixels(getattr(digits, part))
    classes = [set(data.class_names) for data in held]
    assert all(
        one != two and one & two for one in classes for two in classes if one is not two
    )


def test_images_that_are_there_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo-data", str(tmp_path), "--node", "a"]) == 0
    (tmp_path / "a" / "train" / "0" / "mine.txt").touch()
    assert main(["demo-data", str(tmp_path), "--node", "a"]) == 0
    assert (tmp_path / "a" / "train" / "0" / "mine.txt").exists()


def test_a_node_is_a_plain_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo-data", str(tmp_path), "--node", "../a"]) == 1
    assert "--node must be a plain name, got '../a'" in capsys.readouterr().err
