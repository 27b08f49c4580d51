"""Timed runs of our app and of an empty one, by `flwr run` on a private SuperLink."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simulation.bench.measure import NUM_THREADS, announce, timed
from simulation.engines.superlink import EphemeralSuperLink

_PROJECT = Path(__file__).parents[2]
_EMPTY_APP = Path(__file__).parent / "empty_app"
Setting = str | int | float | bool


class FlowerRuns:
    """A context in which apps are run, with a cache and results that go with it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fed3r-bench-"))
        self._superlink = EphemeralSuperLink(
            self._root / "home",
            {
                "FED3R_CACHE_DIR": str(self._root / "cache"),
                "FED3R_OUTPUT_DIR": str(self._root / "runs"),
            },
        )

    def __enter__(self) -> FlowerRuns:
        self._copy_apps()
        self._superlink.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._superlink.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def empty(self, num_clients: int, per_round: int) -> float:
        """Return the seconds of the app that does nothing, with as many messages."""
        settings: dict[str, Setting] = {
            "num-clients": num_clients,
            "clients-per-round": per_round,
        }
        return self._seconds("empty", num_clients, settings)

    def fed3r(self, num_clients: int, settings: Mapping[str, Setting]) -> float:
        """Return the seconds of our app with some settings."""
        return self._seconds("Fed3R", num_clients, settings)

    def _seconds(
        self, app: str, num_clients: int, settings: Mapping[str, Setting]
    ) -> float:
        announce(f"flwr run, the {app} app, {num_clients:,} clients")
        output = self._root / "output.txt"
        values = " ".join(f"{k}={json.dumps(v)}" for k, v in settings.items())
        resources = f"init-args-num-cpus={NUM_THREADS} client-resources-num-cpus=1"
        completed, seconds = timed(
            lambda: self._superlink.run(
                str(self._root / app),
                "--run-config",
                values,
                "--federation-config",
                f"num-supernodes={num_clients} {resources}",
                output=output,
            )
        )
        if not completed:
            raise RuntimeError(f"The run failed:\n{output.read_text()[-2000:]}")
        return seconds

    def _copy_apps(self) -> None:
        """Copy both apps without what lies beside them, which Flower would look at."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_EMPTY_APP, self._root / "empty", ignore=ignored)
        for package in ("fed3r_app", "strategies", "clients"):
            target = self._root / "Fed3R" / package
            shutil.copytree(_PROJECT / package, target, ignore=ignored)
        shutil.copy(_PROJECT / "pyproject.toml", self._root / "Fed3R")
