"""Experiments small enough for a test: 8 x 8 pixels as features."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS, Value
from simulation.engines.inline import run_inline
from tests.harness.runs import kebab

SMALL = """\
title: small
base:
  backbone: pixels
  image-size: 8
  clients: 10
  clients-per-round: 5
  upload-dtype: float64
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write an experiment file: the small one and what is added to it."""

    def write_file(text: str, name: str = "x", start: str = SMALL) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(start + textwrap.dedent(text))
        return path

    return write_file


@pytest.fixture
def run_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run the app on the inline engine; return its directory."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))

    def run(name: str, num_clients: int, **settings: Value) -> Path:
        config = DEFAULTS | {"output-dir": str(tmp_path), "run-name": name}
        config |= kebab(settings)
        run_inline(server_app.app, client_app.app, num_clients, config)
        return tmp_path / name

    return run
