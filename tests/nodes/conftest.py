"""The whole app in this process, on nodes that hold images of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.fixtures import app_runs
from tests.harness.nodes import CLINICS, Federation
from tests.harness.pixels import EXACT

LOCAL = EXACT | {"dataset": "local", "round-timeout": 20.0, "max-retries": 1}


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    made = Federation(tmp_path, app_runs(tmp_path, monkeypatch, LOCAL))
    for client, class_names in CLINICS.items():
        made.add_images(made.folder(client), class_names)
    return made
