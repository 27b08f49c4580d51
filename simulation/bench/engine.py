"""``engine``: how time grows with the number of clients, ours and Flower's share.

Every client has two images of 8 x 8 pixels, so that nothing but the exchange takes
time. An empty app with as many messages, as many in flight, runs beside ours; what is
left after subtracting it is our code.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS
from simulation.bench.empty_app import empty
from simulation.bench.flower_runs import FlowerRuns, Setting
from simulation.bench.inputs import write_images
from simulation.bench.measure import announce, threads, timed
from simulation.bench.result import Options, Ratio, Result
from simulation.engines.inline import run_inline
from simulation.tables import Cell, Table

_PER_ROUND = 100
_NUM_CLASSES = 10
_COLUMNS = (
    *("engine", "K", "rounds", "Fed3R s", "Fed3R s / round"),
    *("empty s", "ours s", "ours ms / client"),
)
# Between linear, 1, and quadratic, 7: what noise does to two numbers of one run.
_MOST_GROWTH = 1.5


def run(options: Options) -> Result:
    """Run both apps on both engines with more and more clients."""
    numbers = (20, 60) if options.quick else (100, 1262, 9275)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with TemporaryDirectory() as name, threads():
        rows = [_run_inline(Path(name), number) for number in numbers]
        if not options.quick:  # a SuperLink and Ray: not a matter of seconds
            with FlowerRuns() as runs:
                rows += [_run_on_ray(runs, Path(name), number) for number in numbers]
    ratios = [
        _growth(rows[i : i + len(numbers)]) for i in range(0, len(rows), len(numbers))
    ]
    title = f"whole runs, {_PER_ROUND} clients a round"
    notes = ["ours: Fed3R less the empty app, imports and the plot of curves included."]
    return Result([Table(title, _COLUMNS, rows)], ratios, notes)


def _growth(rows: list[tuple[Cell, ...]]) -> Ratio:
    """Return how our time grows between the two largest numbers of clients.

    1 where it is linear in K, the ratio of the two numbers where it is quadratic.
    Smaller numbers say nothing: what a run costs once is most of their time.
    """
    (engine, fewer, *_), (_, most, *_) = rows[-2:]
    before, after = (float(row[6] or 0) for row in rows[-2:])
    growth = after / before / (float(most or 0) / float(fewer or 1))
    name = f"{engine}: ours at K = {most:,} / {fewer:,}, linear = 1"
    wanted = _MOST_GROWTH if float(most or 0) > 1000 else None
    return Ratio(name, growth, wanted, at_most=True)


def _run_inline(folder: Path, num_clients: int) -> tuple[Cell, ...]:
    announce(f"inline, K = {num_clients:,}: both apps")
    settings = DEFAULTS | _settings(folder, num_clients)
    settings["output-dir"] = str(folder / "runs")
    asked = {"num-clients": num_clients, "clients-per-round": _PER_ROUND}
    our_apps, empty_apps = (
        (server_app.app, client_app.app),
        (empty.server, empty.client),
    )
    _, nothing = timed(partial(run_inline, *empty_apps, num_clients, asked))
    own_cache = {"FED3R_CACHE_DIR": str(folder / "cache")}  # not the user's
    with patch.dict(os.environ, own_cache):
        _, ours = timed(partial(run_inline, *our_apps, num_clients, settings))
    return _row("inline", num_clients, ours, nothing)


def _run_on_ray(runs: FlowerRuns, folder: Path, num_clients: int) -> tuple[Cell, ...]:
    nothing = runs.empty(num_clients, _PER_ROUND)
    ours = runs.fed3r(num_clients, _settings(folder, num_clients))
    return _row("Ray", num_clients, ours, nothing)


def _row(
    engine: str, num_clients: int, ours: float, nothing: float
) -> tuple[Cell, ...]:
    rounds, share = -(-num_clients // _PER_ROUND), ours - nothing
    times = (ours, ours / rounds, nothing, share, 1e3 * share / num_clients)
    return engine, num_clients, rounds, *times


def _settings(folder: Path, num_clients: int) -> dict[str, Setting]:
    return {
        "dataset": "imagefolder",
        "data-path": str(_tiny_images(folder / f"images-{num_clients}", num_clients)),
        "partition": "iid",
        "backbone": "pixels",
        "image-size": 8,
        "clients-per-round": _PER_ROUND,
    }


def _tiny_images(folder: Path, num_clients: int) -> Path:
    """Return a folder with two images a client and a few to test on."""
    if folder.exists():
        return folder
    rng = np.random.default_rng(0)
    for part, number in (("train", 2 * num_clients), ("test", 100)):
        pixels = rng.integers(256, size=(number, 8, 8), dtype=np.uint8)
        write_images(folder / part, pixels, np.arange(number) % _NUM_CLASSES)
    return folder
