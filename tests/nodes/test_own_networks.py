"""Code and files are a node's own choice; a server that names them is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from clients import own_choice
from fed3r_app.config import Config, Value
from fed3r_app.errors import RunError
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.spec import BackboneSpec
from tests.harness.grid import SpyGrid
from tests.harness.nodes import ALL, Federation

CODE = """
from torch import nn

def make():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 9))
    return network, {"resize": 16, "crop": 16}
"""
OWN = "python:own_network_of_nodes:make"
RUN: dict[str, Any] = {"backbone": OWN, "image_size": 0, "max_retries": 0}


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network_of_nodes.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own_network_of_nodes", None)
    load_backbone.cache_clear()


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, str]:
    """Return files with weights: the same twice, and others."""
    state = load_backbone(BackboneSpec(OWN)).module.state_dict()
    for name, add in (("same", 1.0), ("copy", 1.0), ("other", 2.0)):
        changed = {key: value + add for key, value in state.items()}
        torch.save(changed, tmp_path / f"{name}.pt")
    return {path.stem: str(path) for path in tmp_path.glob("*.pt")}


def nodes(federation: Federation, own: Mapping[str, Value], **settings: Any) -> SpyGrid:
    """Return a grid of nodes whose configs name something of their own."""
    grid = federation.make_grid((), **settings)
    for number, client in enumerate(ALL):
        config = federation.node_config(client) | dict(own)
        federation.connect(101 + number, config)
    return grid


def test_code_that_only_the_run_config_names_is_refused(federation: Federation) -> None:
    sentence = (
        r"backbone must be named by the config of client clinic-\w+ itself, got "
        r"'python:own_network_of_nodes:make' by the run config alone: it is code, "
        r"which a server does not choose on a node.* with --node-config 'backbone="
    )
    with pytest.raises(RunError, match=sentence):
        federation.run(ALL, **RUN)
    assert federation.grid.asked["train.statistics"] == len(ALL)  # once: it is lasting


@pytest.mark.parametrize("backbone", ["python:x:y", "pixels+python:x:y"])
def test_a_file_of_its_own_allows_no_code_of_the_server(backbone: str) -> None:
    named = Config(dataset="local", backbone=backbone)
    with pytest.raises(ValueError, match="it is code"):
        own_choice.own_choice({"weights": "/models/x"}, named, "clinic-a")


def test_a_file_that_only_the_run_config_names_is_refused(
    federation: Federation, weights: dict[str, str]
) -> None:
    grid = nodes(federation, {"backbone": OWN}, **RUN, weights=weights["same"])
    with pytest.raises(RunError, match=r"weights must be named .* got '.*same\.pt' by"):
        federation.run(grid=grid)


def test_a_node_uses_the_code_and_the_file_that_its_config_names(
    federation: Federation, weights: dict[str, str]
) -> None:
    own = {"backbone": OWN, "weights": weights["copy"]}
    grid = nodes(federation, own, **RUN, weights=weights["same"])
    outcome = federation.run(grid=grid)
    assert outcome.summary["clients_counted"] == len(ALL)
    assert outcome.model.W.shape[0] == 9


def test_another_file_at_a_node_shows_in_the_picture(
    federation: Federation, weights: dict[str, str]
) -> None:
    own = {"backbone": OWN, "weights": weights["other"]}
    grid = nodes(federation, own, **RUN, weights=weights["same"])
    with pytest.raises(RunError, match="features of the built-in picture must be with"):
        federation.run(grid=grid)


def test_a_node_with_a_network_of_its_own_takes_part_in_runs_without_any(
    federation: Federation,
) -> None:
    outcome = federation.run(grid=nodes(federation, {"backbone": OWN}))
    federation.assert_pooled(outcome)


@pytest.mark.parametrize("deployed", [False, True])
def test_simulated_clients_take_what_the_run_config_names(
    monkeypatch: pytest.MonkeyPatch, deployed: bool
) -> None:
    config = Config(backbone=OWN, weights="/models/x.pt")
    if not deployed:
        assert own_choice.own_choice({}, config, "3") == (OWN, "/models/x.pt")
        return
    # A SuperNode starts this program, whatever the data set.
    monkeypatch.setattr(sys, "argv", ["/usr/bin/flwr-clientapp", "--token", "x"])
    with pytest.raises(ValueError, match="must be named by the config of client 3"):
        own_choice.own_choice({}, config, "3")


@pytest.mark.parametrize("name", ["mobilenet_v2", "timm:resnet18", "hf:a/b"])
@pytest.mark.parametrize("weights", ["auto", "random", "torchvision", "packaged"])
def test_names_and_words_may_come_from_the_server(name: str, weights: str) -> None:
    config = Config(dataset="local", backbone=name, weights=weights)
    assert own_choice.own_choice({}, config, "a") == (name, weights)
