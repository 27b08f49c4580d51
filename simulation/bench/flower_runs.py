"""Timed runs of our app and of an empty one: `flwr run` on an ephemeral SuperLink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fed3r_app.deployment.processes import INSTALLED_APP
from simulation.bench.measure import NUM_THREADS, announce, timed
from simulation.engines.superlink import EphemeralSuperLink

Settings = Mapping[str, str | int | float | bool]
TimeRun = Callable[[Path, int, Settings], float]
"""Seconds of an app with so many clients and these settings."""
OUR_APP, EMPTY_APP = INSTALLED_APP, Path(__file__).parent / "empty_app"


@contextmanager
def flower_runs() -> Iterator[TimeRun]:
    """Give what times runs, with a cache and results that are removed afterwards."""
    with TemporaryDirectory(prefix="fed3r-bench-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        folders = {"FED3R_CACHE_DIR": "cache", "FED3R_OUTPUT_DIR": "runs"}
        variables = {key: str(root / folder) for key, folder in folders.items()}
        with EphemeralSuperLink(root / "home", variables) as superlink:

            def time_run(app: Path, num_clients: int, settings: Settings) -> float:
                announce(f"flwr run, {app.name}, {num_clients:,} clients")
                output = root / "output.txt"
                processors = {"init-args-num-cpus": NUM_THREADS}
                given = (app, settings, num_clients, processors, output)
                return timed(superlink.simulate, *given)[1]

            yield time_run
