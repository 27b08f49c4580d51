"""Networks of other libraries, saved once, and pictures for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from PIL import Image

from fed3r_app.data.images import FileImages
from tests.harness.saved_networks import SavedNetwork, save

Save = Callable[[str], SavedNetwork]
SIZES = ((90, 61), (41, 77), (64, 64), (20, 27))  # the last one has to be enlarged


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the Hub for nothing, not even in vain."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Return what saves a tiny network, once for all tests."""
    root = tmp_path_factory.mktemp("networks")
    return cache(lambda name: save(root / name, name))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> FileImages:
    """Return pictures of noise, in which every pixel shows."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i, (width, height) in enumerate(SIZES):
        noise = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(root / f"{i}.png")
    names = [f"{i}.png" for i in range(len(SIZES))]
    return FileImages(root, names, [0] * len(SIZES))
