"""What ``fed3r bench`` does: runs benchmarks, prints tables, writes JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.deployment.process_group import PATIENT_THREADS
from simulation.commands import BENCHMARKS

if TYPE_CHECKING:
    from simulation.bench.result import Result

_DATA_VARIABLE = "FED3R_BENCH_DATA"
_SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmarks asked for; return the exit code."""
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        names = ", ".join(BENCHMARKS)
        print(f"NAME must be one of {names}, got {unknown[0]!r}.", file=sys.stderr)
        return 2
    os.environ |= {**PATIENT_THREADS, **os.environ}  # before torch is loaded
    data = find_data(arguments.data)
    for name in arguments.names or BENCHMARKS:
        print(f"== {name} ==\n", flush=True)
        result = run_benchmark(name, arguments.quick, data)
        print(f"{result}\n", flush=True)
        path = arguments.output / f"{name}.json"
        result.save(path)
        print(f"Saved: {path}\n", flush=True)
    return 0


def run_benchmark(name: str, quick: bool, data: Path | None = None) -> Result:
    """Return the result of one benchmark, the only one that is loaded."""
    from simulation.bench.measure import threads
    from simulation.bench.result import Result

    result = Result(quick, data)
    with threads():
        importlib.import_module(f"simulation.bench.{name}").run(result)
    return result


def find_data(chosen: Path | None) -> Path | None:
    """Return the folder of real data, or None where there is none."""
    if chosen is not None and not chosen.is_dir():
        raise FileNotFoundError(f"--data must be a folder, got {chosen}.")
    configured = os.environ.get(_DATA_VARIABLE)
    folder = chosen or (Path(configured) if configured else _SHARED_DATA)
    return folder if folder.is_dir() else None
