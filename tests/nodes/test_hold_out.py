"""Nodes that hold a part of their images out: trained on never, tested with always."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.errors import RunError
from tests.data.test_hold_out import is_held_out
from tests.harness.nodes import Federation
from tests.harness.pixels import LAM, assert_close

CLIENTS, NAMES, SHARE = ("a", "b", "c"), ("ape", "bee"), 0.3


@pytest.fixture
def sharing(federation: Federation) -> Federation:
    for client in CLIENTS:
        federation.add_images(federation.folder(client), NAMES * 15)
    return federation


def side(federation: Federation, clients: Sequence[str], held_out: bool) -> Any:
    """Return features and labels of some nodes' images on one side."""
    paths = [
        path
        for client in clients
        for path in sorted(federation.folder(client).rglob("*.png"))
        if is_held_out(path.read_bytes(), SHARE) == held_out
    ]
    pixels = [np.asarray(Image.open(path)).reshape(-1) / 255 for path in paths]
    labels = [NAMES.index(path.parent.name) for path in paths]
    return torch.tensor(np.array(pixels, np.float32)), torch.tensor(labels)


def test_what_is_held_out_is_tested_with_and_not_trained_on(
    sharing: Federation,
) -> None:
    outcome = sharing.run(CLIENTS, test_share=SHARE)
    (Z, y), (Z_test, y_test) = (side(sharing, CLIENTS, held) for held in (False, True))
    assert len(y_test) > 20
    W = solve_ridge(RidgeStatistics.of(Z, y, len(NAMES)), LAM)
    assert_close(outcome.weights, W, 1e-9)
    summary = outcome.summary
    assert summary["num_samples"] == len(y)
    assert summary["client_test_images"] == len(y_test)
    correct = (Z_test.double() @ W).argmax(dim=1) == y_test
    assert summary["accuracy"] == pytest.approx(float(correct.double().mean()))


def test_fine_tuning_does_not_see_it_either(sharing: Federation) -> None:
    outcome = sharing.run(CLIENTS, test_share=SHARE, finetune="lp", rounds=1)
    trained = sum(each.num_examples for each in outcome.trained)
    assert trained == len(side(sharing, CLIENTS, held_out=False)[1])


def test_a_class_held_out_whole_is_logged_there_and_counted_here(
    sharing: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    folder = sharing.folder("a")
    lone = next(p for p in sorted(folder.rglob("*.png")) if is_held_out(p.read_bytes()))
    (folder / "owl").mkdir()
    lone.rename(folder / "owl" / "1.png")
    with caplog.at_level(logging.WARNING):
        outcome = sharing.run(CLIENTS, test_share=SHARE)
    assert outcome.summary["held_out_classes"] == 1
    assert "Client a: all images of owl are held out" in caplog.text
    assert outcome.summary["absent_classes"] == ["owl"]
    (counted,) = (e for e in outcome.ledger if e.client == "a")
    assert counted.held_out_classes == 1


HINT = "Neither the server nor a node has test images: no accuracy. "


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({}, HINT + "test-share=0.2 holds some out at the nodes; data-path gives"),
        ({"privacy": "secagg", "labels": ",".join(NAMES)}, HINT + "data-path gives"),
        ({"test_share": SHARE}, ""),
    ],
)
def test_where_there_are_no_test_images_it_is_said_how_to_have_some(
    sharing: Federation,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    hint: str,
) -> None:
    outcome = sharing.run(CLIENTS, **settings)
    assert (outcome.summary["accuracy"] is None) == bool(hint)
    assert hint in caplog.text
    assert caplog.text.count(HINT) == bool(hint)


def test_a_node_with_nothing_left_is_refused_at_once(sharing: Federation) -> None:
    folder = sharing.folder("lone")
    held = next(
        p for p in sharing.folder("a").rglob("*.png") if is_held_out(p.read_bytes())
    )
    (folder / "ape").mkdir(parents=True)
    (folder / "ape" / "1.png").write_bytes(held.read_bytes())
    with pytest.raises(RunError, match="test-share must leave Client lone images"):
        sharing.run([*CLIENTS, "lone"], test_share=SHARE, max_retries=3)
    assert sharing.grid.log.count((101 + 7 * 3, "query.hello")) == 1
