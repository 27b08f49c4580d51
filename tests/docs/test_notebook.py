"""The notebook runs from its first cell to its last, and holds no outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import PAGES, ROOT

NOTEBOOK = ROOT / "docs" / "first-steps.ipynb"
CELLS = [
    cell
    for cell in json.loads(NOTEBOOK.read_text())["cells"]
    if cell["cell_type"] == "code"
]


def test_the_notebook_simulates_looks_and_predicts(tmp_path: Path) -> None:
    """Run as a program: an expression at the end of a cell is what Jupyter shows."""
    code = "\n".join("".join(cell["source"]) for cell in CELLS)
    quick = 'features = ["backbone=pixels", "image-size=8"]'
    assert "\nfeatures = []\n" in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace("\nfeatures = []\n", f"\n{quick}\n")],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FED3R_CACHE_DIR": str(tmp_path / "cache"),
            "FED3R_OUTPUT_DIR": "",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    listed = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["ridge", "complete"] in listed
    assert "Settings that differ" in done.stdout
    predicted = [line for line in done.stdout.splitlines() if line.startswith("digit-")]
    assert len(predicted) == 3
    # The first of the best classes is mostly the one in the name of the file.
    right = [line.split("-")[1] == line.split(": ")[1].split()[0] for line in predicted]
    assert sum(right) >= 2


def test_the_notebook_holds_no_outputs() -> None:
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CELLS)


def test_the_notebook_can_be_found() -> None:
    for page in ("README.md", "docs/getting-started.md"):
        assert "first-steps.ipynb" in PAGES[page]
