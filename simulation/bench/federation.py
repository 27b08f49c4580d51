"""``federation``: a whole run at the paper's scale, with features in place of images.

iNaturalist-Users-120K: 9,275 clients of the real sizes, 10 a round, 928 rounds, through
the same ServerApp and ClientApp as any run, on the inline engine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS
from fed3r_app.runs.directory import RunDirectory
from simulation.bench.inputs import INATURALIST
from simulation.bench.measure import announce, measure
from simulation.bench.result import Options, Ratio, Result
from simulation.engines.inline import run_inline
from simulation.tables import Table

_PER_ROUND = 10
_DIM = 1280
_SECONDS, _GIGABYTES = 180.0, 2.0


def run(options: Options) -> Result:
    """Run the federation once, in a process of its own."""
    K, dataset, sizes = _choose(options)
    announce(f"{K:,} clients, {_PER_ROUND} a round")
    taken = measure(
        run_federation, dataset, str(sizes or ""), K, isolated=not options.quick
    )
    summary: dict[str, Any] = taken.value
    peak = taken.peak_bytes / 1e9
    rows = [
        ("rounds", summary["rounds"]),
        ("images", summary["num_samples"]),
        ("seconds", taken.seconds),
        ("ms per client", 1e3 * taken.seconds / K),
        ("peak GB, all included", peak),
        ("GB uploaded", summary["upload_bytes"] / 1e9),
        ("GB of the paper's dense uploads", summary["paper_upload_bytes"] / 1e9),
        ("accuracy %", 100 * summary["accuracy"]),
    ]
    title = f"{K:,} clients, {_PER_ROUND} a round: {dataset}"
    ratios = [
        Ratio("seconds", taken.seconds, _SECONDS, at_most=True),
        Ratio("peak GB", peak, _GIGABYTES, at_most=True),
    ]
    note = f"Client sizes: {sizes or 'log-normal with the published mean'}."
    return Result([Table(title, ("", "value"), rows)], ratios, [note])


def _choose(options: Options) -> tuple[int, str, Path | None]:
    """Return the number of clients, the data set, and the file of the sizes."""
    if options.quick:
        return 60, "synthetic:clients=60,classes=20,features=32,mean=5", None
    real, K = INATURALIST, INATURALIST.num_clients
    dataset = f"synthetic:classes={real.num_classes},features={_DIM}"
    path = real.sizes_file(options.data)
    if path is not None:
        return K, dataset, path
    return K, f"{dataset},clients={K},mean={real.mean_size}", None


def run_federation(dataset: str, data_path: str, num_clients: int) -> dict[str, Any]:
    """Return the summary of a run, in a folder that is gone afterwards."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with TemporaryDirectory() as folder:
        config = DEFAULTS | {
            "dataset": dataset,
            "data-path": data_path,
            "backbone": "none",
            "partition": "natural",
            "clients-per-round": _PER_ROUND,
            "output-dir": folder,
            "run-name": "run",
        }
        run_inline(server_app.app, client_app.app, num_clients, config)
        return dict(RunDirectory(Path(folder, "run")).read_summary())
