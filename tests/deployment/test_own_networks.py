"""SuperNodes whose run names code: only a node that names it, too, takes part."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.harness.deployment import PROJECT

pytestmark = pytest.mark.slow
CODE = """
from torch import nn

def make():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return network, {"resize": 8, "crop": 8}
"""
OWN = "python:network_of_one_node:make"


def test_code_of_a_server_is_refused_also_where_the_data_set_is_shared(
    deploy: Any, tmp_path: Path
) -> None:
    (tmp_path / "network_of_one_node.py").write_text(CODE)
    parts: dict[str, Any]
    parts = {str(i): {"partition-id": i, "num-partitions": 2} for i in range(2)}
    parts["0"]["backbone"] = OWN
    path = os.pathsep.join([str(PROJECT), str(tmp_path)])
    federation = deploy(parts, environment={"PYTHONPATH": path})
    outcome = federation.run(
        "it",
        **{"dataset": "digits-small", "partition": "iid", "backbone": OWN},
        **{"image_size": 8, "min_clients": 1, "max_retries": 0},
    )
    assert outcome.completed, outcome.output
    assert list(outcome.snapshot.contributions) == ["0"]
    assert "it is code, which a server does not choose" in outcome.output
