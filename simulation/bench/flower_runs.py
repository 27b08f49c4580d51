"""Timed runs of our app and of an empty one, by `flwr run` on a private SuperLink."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fed3r_app.deployment.processes import INSTALLED_APP, toml
from simulation.bench.measure import NUM_THREADS, announce, timed
from simulation.engines.superlink import EphemeralSuperLink

_EMPTY_APP = Path(__file__).parent / "empty_app"
Setting = str | int | float | bool


class FlowerRuns:
    """A context in which apps are run, with a cache and results that go with it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fed3r-bench-"))
        folders = {"FED3R_CACHE_DIR": "cache", "FED3R_OUTPUT_DIR": "runs"}
        variables = {key: str(self._root / name) for key, name in folders.items()}
        self._superlink = EphemeralSuperLink(self._root / "home", variables)

    def __enter__(self) -> FlowerRuns:
        self._superlink.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._superlink.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def empty(self, num_clients: int, per_round: int) -> float:
        """Return the seconds of the app that does nothing, with as many messages."""
        settings = {"num-clients": num_clients, "clients-per-round": per_round}
        return self._seconds(_EMPTY_APP, num_clients, settings)

    def fed3r(self, num_clients: int, settings: Mapping[str, Setting]) -> float:
        """Return the seconds of our app with some settings."""
        return self._seconds(INSTALLED_APP, num_clients, settings)

    def _seconds(
        self, app: Path, num_clients: int, settings: Mapping[str, Setting]
    ) -> float:
        announce(f"flwr run, {app.name}, {num_clients:,} clients")
        output = self._root / "output.txt"
        resources = f"init-args-num-cpus={NUM_THREADS} client-resources-num-cpus=1"
        nodes = f"num-supernodes={num_clients} {resources}"
        options = ("--run-config", toml(settings), "--federation-config", nodes)
        run = partial(self._superlink.run, str(app), *options, output=output)
        completed, seconds = timed(run)
        if not completed:
            raise RuntimeError(f"The run failed:\n{output.read_text()[-2000:]}")
        return seconds
