"""What a client's process imports: torch only for requests that need it."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_a_plain_hello_needs_no_torch() -> None:
    program = """
import sys
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fed3r_app.client_app import app
from fed3r_app.config import DEFAULTS

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
run_config = dict(DEFAULTS)
node_config = {"partition-id": 3, "num-partitions": 5}
context = Context(1, 7, node_config, RecordDict(), run_config)
request = RecordDict({"config": ConfigRecord({"moments": False})})
reply = app(Message(request, dst_node_id=7, message_type="query.hello"), context)
print(reply.content.config_records["config"]["client-id"])
print([name for name in ("torch", "scipy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT,
    )
    assert done.stdout.split("\n")[:2] == ["3", "[]"]
