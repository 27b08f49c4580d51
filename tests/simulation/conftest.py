"""Experiments small enough for a test: 8 x 8 pixels as features."""

import textwrap

import pytest

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS
from simulation.engines.inline import run_inline

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
def write_experiment(tmp_path):
    """Write an experiment file: the small one and what is added to it."""

    def write(text, name="x", start=SMALL):
        path = tmp_path / f"{name}.yaml"
        path.write_text(start + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def run_app(tmp_path, monkeypatch):
    """Run the app on the inline engine; return its directory."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))

    def run(name, num_clients, **settings):
        config = DEFAULTS | {"output-dir": str(tmp_path), "run-name": name}
        config |= {key.replace("_", "-"): value for key, value in settings.items()}
        run_inline(server_app.app, client_app.app, num_clients, config)
        return tmp_path / name

    return run
