"""What a client's process imports: torch only for requests that need it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.pixels import write_image

PROJECT = Path(__file__).parents[2]


_PROGRAM = """
import json, sys
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fed3r_app.client_app import app
from fed3r_app.config import DEFAULTS

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
given, node_config = map(json.loads, sys.argv[1:])
run_config = {**DEFAULTS, **given}
context = Context(1, 7, node_config, RecordDict(), run_config)
request = RecordDict({"config": ConfigRecord({"moments": False})})
reply = app(Message(request, dst_node_id=7, message_type="query.hello"), context)
print(reply.content.config_records["config"]["client-id"])
print([name for name in ("torch", "scipy", "matplotlib") if name in sys.modules])
"""


def hello(run_config: dict[str, Any], node_config: dict[str, Any]) -> list[str]:
    """Return who says hello, and which large modules that took."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(json.dumps, (run_config, node_config))],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT,
    )
    return done.stdout.splitlines()[-2:]


def test_a_plain_hello_needs_no_torch() -> None:
    assert hello({}, {"partition-id": 3, "num-partitions": 5}) == ["3", "[]"]


def test_nor_does_holding_images_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    for number in range(20):
        write_image(tmp_path / "images" / "ape" / f"{number}.png", number)
    node = {"data-path": str(tmp_path / "images"), "client-id": "x"}
    assert hello({"dataset": "local", "test-share": 0.5}, node) == ["x", "[]"]
