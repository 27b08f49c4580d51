"""Fixtures of tests with nodes in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from fed3r_app.config import Value
from fed3r_app.core import FeatureMoments
from fed3r_app.wire import Hello, add_digest, pack_hello, pack_statistics
from strategies.flower_internals import enter_run
from tests.harness.grid import SpyGrid
from tests.harness.runs import AppRuns

Reply = Callable[..., Message]


def app_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Value],
    cache: Path | None = None,
    seed: int | None = None,
) -> AppRuns:
    """Return what runs the app with files below a test's own folder."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(cache or tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))
    return AppRuns(tmp_path / "runs", given, seed)


@pytest.fixture(autouse=True)
def _a_run() -> None:
    """Messages can only be made inside a run."""
    enter_run(1, 1, task_id=1)


@pytest.fixture
def make_grid() -> type[SpyGrid]:
    return SpyGrid


@pytest.fixture
def fail() -> Reply:
    """Make an error reply."""

    def reply(message: Message, reason: str = "It broke.") -> Message:
        return Message(Error(code=0, reason=reason), reply_to=message)

    return reply


@pytest.fixture
def say_hello() -> Reply:
    """Make the reply to the first request."""

    def reply(
        message: Message,
        client: str,
        num_partitions: int = 0,
        moments: FeatureMoments | None = None,
    ) -> Message:
        content = pack_hello(Hello(client, num_partitions, moments))
        return Message(content, reply_to=message)

    return reply


@pytest.fixture
def reply_with() -> Reply:
    """Make a reply with the given records."""

    def reply(message: Message, **records: Any) -> Message:
        return Message(RecordDict(records), reply_to=message)

    return reply


@pytest.fixture
def send_statistics(reply_with: Reply) -> Reply:
    """Make the reply with the statistics of some samples, float64 unless told."""

    def reply(
        message: Message,
        Z: Any,
        y: Any,
        num_classes: int,
        form: str = "factor",
        dtype: str = "float64",
        digest: str = "0" * 64,
    ) -> Message:
        record = pack_statistics(
            torch.as_tensor(Z), torch.as_tensor(y), num_classes, form, dtype
        )
        made = reply_with(message, arrays=record)
        add_digest(made.content, digest)
        return made

    return reply
