"""``engine``: how time grows with the number of clients, ours and Flower's share.

Every client has two images of 8 x 8 pixels, so that nothing but the exchange takes
time. An empty app with as many messages, as many in flight, runs beside ours; what is
left after subtracting it is our code.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from fed3r_app import client_app, server_app
from fed3r_app.config import DEFAULTS
from simulation.bench.empty_app import empty
from simulation.bench.flower_runs import (
    EMPTY_APP,
    OUR_APP,
    Settings,
    TimeRun,
    flower_runs,
)
from simulation.bench.inputs import write_images
from simulation.bench.measure import announce, only_warnings, timed
from simulation.bench.result import Result
from simulation.engines.inline import run_inline

_PER_ROUND = 100
_NUM_CLASSES = 10
_APPS = {
    OUR_APP: (server_app.app, client_app.app),
    EMPTY_APP: (empty.server, empty.client),
}
_COLUMNS = (
    *("engine", "K", "rounds", "Fed3R s", "Fed3R s / round"),
    *("empty s", "ours s", "ours ms / client"),
)
# Between linear, 1, and quadratic, 7: what noise does to two numbers of one run.
_MOST_GROWTH = 1.5


@only_warnings()
def run(result: Result) -> None:
    """Run both apps on both engines with more and more clients."""
    numbers = (20, 60) if result.quick else (100, 1262, 9275)
    rows = []
    with (
        TemporaryDirectory() as name,
        closing(_engines(Path(name), result.quick)) as engines,
    ):
        for engine, time_run in engines:
            shares = []
            for K in numbers:
                asked = {"num-clients": K, "clients-per-round": _PER_ROUND}
                nothing = time_run(EMPTY_APP, K, asked)
                ours = time_run(OUR_APP, K, _settings(Path(name), K))
                rounds, share = -(-K // _PER_ROUND), ours - nothing
                times = (ours, ours / rounds, nothing, share, 1e3 * share / K)
                rows.append((engine, K, rounds, *times))
                shares.append(share / K)
            # 1 where our time is linear in K, the ratio of the two largest K where it
            # is quadratic. Of a smaller K, what a run costs once is most of its time.
            fewer, most = numbers[-2:]
            growth = f"{engine}: ours at K = {most:,} / {fewer:,}, linear = 1"
            wanted = None if result.quick else _MOST_GROWTH
            result.ratio(growth, shares[-1] / shares[-2], wanted, at_most=True)
    result.table(f"whole runs, {_PER_ROUND} clients a round", _COLUMNS, rows)
    note = "ours: Fed3R less the empty app, imports and the plot of curves included."
    result.notes.append(note)


def _engines(folder: Path, quick: bool) -> Generator[tuple[str, TimeRun], None, None]:
    yield "inline", partial(_time_inline, folder)
    if not quick:  # a SuperLink and Ray: not a matter of seconds
        with flower_runs() as time_run:
            yield "Ray", time_run


def _time_inline(
    folder: Path, app: Path, num_clients: int, settings: Settings
) -> float:
    announce(f"inline, {app.name}, {num_clients:,} clients")
    config = {**DEFAULTS, **settings, "output-dir": str(folder / "runs")}
    own_cache = {"FED3R_CACHE_DIR": str(folder / "cache")}  # not the user's
    with patch.dict(os.environ, own_cache):
        return timed(run_inline, *_APPS[app], num_clients, config)[1]


def _settings(folder: Path, num_clients: int) -> Settings:
    """Return settings with two images a client and a few to test on."""
    images = folder / f"images-{num_clients}"
    if not images.exists():
        rng = np.random.default_rng(0)
        for part, number in (("train", 2 * num_clients), ("test", 100)):
            pixels = rng.integers(256, size=(number, 8, 8), dtype=np.uint8)
            write_images(images / part, pixels, np.arange(number) % _NUM_CLASSES)
    return {
        "dataset": "imagefolder",
        "data-path": str(images),
        "partition": "iid",
        "backbone": "pixels",
        "image-size": 8,
        "clients-per-round": _PER_ROUND,
    }
