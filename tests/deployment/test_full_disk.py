"""A disk without room: one sentence, nothing damaged, and the run goes on later."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from fed3r_app.runs.model_file import load_model
from tests.harness.deployment import PROJECT

# The app in one process, with a limit on the size of its files: a write that passes it
# fails half-way through, as on a full disk. No limit where it is 0.
SCRIPT = """\
import json, resource, sys
from pathlib import Path
from fed3r_app.client_app import app as client_app
from fed3r_app.server_app import app as server_app
from fed3r_app.config import DEFAULTS
from simulation.engines.inline import run_inline

limit, settings = int(sys.argv[1]), json.loads(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
config = dict(DEFAULTS)
run_inline(server_app, client_app, 3, config | settings)
"""
SETTINGS = {
    "backbone": "pixels",
    "image-size": 8,
    "ridge-lambda": 1,
    "upload-dtype": "float64",
}


def run(folder: Path, name: str, limit: int = 0, resume: bool = False) -> Any:
    settings = json.dumps({**SETTINGS, "run-name": name, "resume": resume})
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(limit), settings],
        cwd=PROJECT,
        env={
            **os.environ,
            "FED3R_OUTPUT_DIR": str(folder / "runs"),
            "FED3R_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": str(PROJECT),
        },
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_full_disk_ends_in_a_sentence_and_resume_gives_the_same_classifier(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "undisturbed").returncode == 0
    full = run(tmp_path, "full", limit=10_000)
    assert full.returncode != 0
    last = full.stderr.strip().splitlines()[-1]
    assert "must be saved in" in last
    assert "File too large" in last
    assert "make room, and resume with resume=true" in last
    hidden = [path.name for path in (tmp_path / "runs" / "full").glob(".*")]
    assert hidden == [".lock"]  # no torn files
    resumed = run(tmp_path, "full", resume=True)
    assert resumed.returncode == 0, resumed.stderr
    one, other = (
        load_model(tmp_path / "runs" / name / "model.safetensors").W
        for name in ("undisturbed", "full")
    )
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
