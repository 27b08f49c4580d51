"""``federation``: a whole run at the paper's scale, with features in place of images.

iNaturalist-Users-120K: 9,275 clients of the real sizes, 10 a round, 928 rounds, through
the same ServerApp and ClientApp as any run, on the inline engine.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS
from fed3r_app.runs.directory import RunDirectory
from simulation.bench.inputs import INATURALIST
from simulation.bench.measure import only_warnings
from simulation.bench.result import Result
from simulation.engines.inline import run_inline

_PER_ROUND = 10


def run(result: Result) -> None:
    """Run the federation once, in a process of its own."""
    K, sizes = 60, None
    dataset = "synthetic:clients=60,classes=20,features=32,mean=5"
    if not result.quick:
        K, sizes = INATURALIST.num_clients, INATURALIST.sizes_file(result.data)
        dataset = f"synthetic:classes={INATURALIST.num_classes},features=1280"
        if sizes is None:
            dataset += f",clients={K},mean={INATURALIST.mean_size}"
    title = f"{K:,} clients, {_PER_ROUND} a round"
    taken = result.measure(title, run_federation, dataset, str(sizes or ""), K)
    summary, seconds, peak = taken.value, taken.seconds, taken.peak_bytes / 1e9
    rows = [
        ("rounds", summary["rounds"]),
        ("images", summary["num_samples"]),
        ("seconds", seconds),
        ("ms per client", 1e3 * seconds / K),
        ("peak GB, all included", peak),
        ("GB uploaded", summary["upload_bytes"] / 1e9),
        ("GB of the paper's dense uploads", summary["paper_upload_bytes"] / 1e9),
        ("accuracy %", 100 * summary["accuracy"]),
    ]
    result.table(f"{title}: {dataset}", ("", "value"), rows)
    result.ratio("seconds", seconds, 180.0, at_most=True)
    result.ratio("peak GB", peak, 2.0, at_most=True)
    note = f"Client sizes: {sizes or 'log-normal with the published mean'}."
    result.notes.append(note)


@only_warnings()
def run_federation(dataset: str, data_path: str, num_clients: int) -> dict[str, Any]:
    """Return the summary of a run, in a folder that is gone afterwards."""
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
