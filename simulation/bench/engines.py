"""``engines``: the same run by both engines of ``fed3r simulate``, and the same W.

Whole commands as a user types them, in processes of their own, one after the other.
The features are in the cache, but for the run that puts them there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import load_model
from simulation.bench.measure import announce, timed
from simulation.bench.result import Result

_COLUMNS = ("run", "command s", "run s", "accuracy")
_FIRST, _INLINE, _RAY = "inline, without a cache", "inline", "Ray"
_REPEATS = 3
# Replies arrive in another order, so sums are rounded in another one.
_MOST_DIFFERENCE = 1e-9


def run(result: Result) -> None:
    """Run the digits on ten clients of one class each, with the packaged network."""
    settings = ["backbone=pixels", "image-size=8"] if result.quick else []
    repeats = 1 if result.quick else _REPEATS
    engines = {_INLINE: "inline"} if result.quick else {_INLINE: "inline", _RAY: "ray"}
    with TemporaryDirectory(prefix="fed3r-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        rows = {_FIRST: _run(folder, _FIRST, "inline", settings)}
        seconds: dict[str, list[float]] = {title: [] for title in engines}
        for _ in range(repeats):  # by turns, since others may be at work here, too
            for title, engine in engines.items():
                rows[title] = _run(folder, title, engine, settings)
                seconds[title].append(rows[title][1])
        least = {title: min(found) for title, found in seconds.items()}
        table = [
            (title, least.get(title, row[1]), *row[2:]) for title, row in rows.items()
        ]
        result.table("fed3r simulate, ten clients", _COLUMNS, table)
        first = rows[_FIRST][0]
        for title in engines:
            difference = _difference(first, rows[title][0])
            what = f"W of {title} / without a cache, largest difference"
            result.ratio(what, difference, _MOST_DIFFERENCE, at_most=True)
    if not result.quick:
        ratio = least[_INLINE] / least[_RAY]
        result.ratio("inline / Ray, seconds of the command", ratio, 0.5, at_most=True)
    result.notes.append(f"The shortest of {repeats}; the run itself is the last one's.")


def _run(
    folder: Path, title: str, engine: str, settings: list[str]
) -> tuple[Tensor, float, float, float]:
    """Return W, and the seconds of the command and of the run in it."""
    announce(title)
    words = [*settings, f"output-dir={folder / 'results'}"]
    command = ["-m", "fed3r_app.cli", "simulate", "--engine", engine, *words]
    variables = {"FED3R_CACHE_DIR": str(folder / "cache")}
    done, seconds = timed(
        lambda: subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )
    )
    if done.returncode:
        raise RuntimeError(f"The run failed:\n{done.stdout[-2000:]}{done.stderr}")
    made = RunDirectory((folder / "results" / "latest").resolve())
    summary = made.read_summary()
    accuracy, inside = summary["accuracy"], summary["seconds"]
    assert isinstance(accuracy, float) and isinstance(inside, float)
    return load_model(made.model_path).W, seconds, inside, accuracy


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two classifiers, relative to the first."""
    return float((one - other).abs().max() / one.abs().max())
