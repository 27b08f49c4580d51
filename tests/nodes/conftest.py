"""The whole app in this process, on nodes that hold images of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message

from tests.harness.fixtures import app_runs
from tests.harness.grid import Before
from tests.harness.nodes import AtFirst, Federation
from tests.harness.pixels import LAM, PIXELS

EXACT = PIXELS | {
    "dataset": "local",
    "ridge-lambda": LAM,
    "upload-dtype": "float64",
    "round-timeout": 20.0,
    "max-retries": 1,
}
# Which classes the images of each node are of: none has all, some share one.
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-10": ("yak", "yak", "owl"),
}


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    made = Federation(tmp_path, app_runs(tmp_path, monkeypatch, EXACT))
    for client, class_names in CLINICS.items():
        made.add_images(made.folder(client), class_names)
    return made


@pytest.fixture
def at_first() -> AtFirst:
    """Make a hook that calls an action ahead of the first request of a kind."""

    def make(kind: str, action: Callable[[int], object]) -> Before:
        done: list[int] = []

        def before(message: Message, context: Context) -> None:
            if message.metadata.message_type == kind and not done:
                done.append(context.node_id)
                action(context.node_id)

        return before

    return make


@pytest.fixture
def clinics() -> tuple[str, ...]:
    return tuple(CLINICS)
