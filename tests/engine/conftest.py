"""The real thing: ``flwr run`` as a user calls it, on Ray.

All runs share a SuperLink, a folder and a feature cache of their own, which go with
the session.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.errors import RunError
from simulation.engines.superlink import EphemeralSuperLink
from tests.harness.runs import COMPLETED, Outcome

PROJECT = Path(__file__).parents[2]


class Engine:
    """Runs the app, or another one, on a SuperLink that is up."""

    def __init__(self, superlink: Any, root: Any) -> None:
        self._superlink = superlink
        self._root = root
        self._copy = _copy_app(root / "app")
        self._calls = 0

    @property
    def cache(self) -> Any:
        return self._root / "cache"

    def run_default(self, run_name: str, num_clients: int, **settings: Any) -> Any:
        """Call ``flwr run .`` as ``make run`` does."""
        federation = "client-resources-num-cpus=1"
        return self._run(PROJECT, run_name, num_clients, federation, settings)

    def run(
        self,
        run_name: str,
        num_clients: int,
        app: Any = None,
        processes: int = 1,
        **settings: Any,
    ) -> Any:
        """Call ``flwr run`` the quick way, for small runs.

        One process for all clients unless told, and the app without what lies beside
        it: Flower looks through all of .venv before it leaves it out.
        """
        federation = f"init-args-num-cpus={processes} client-resources-num-cpus=1"
        return self._run(app or self._copy, run_name, num_clients, federation, settings)

    def _run(
        self, app: Any, run_name: str, num_clients: int, federation: Any, settings: Any
    ) -> Any:
        """Settings are those of the run config, with ``_`` for ``-``."""
        self._calls += 1
        output = self._root / f"output-{self._calls}.txt"
        output.touch()
        settings["run_name"] = run_name
        status, error = COMPLETED, ""
        try:
            self._superlink.run(
                str(app),
                "--run-config",
                " ".join(
                    f"{k.replace('_', '-')}={_toml(v)}" for k, v in settings.items()
                ),
                "--federation-config",
                f"num-supernodes={num_clients} {federation}",
                output=output,
            )
        except RunError as failure:
            status, error = "finished:failed", str(failure)
        return Outcome(
            self._root / "runs" / run_name, status, output.read_text() + error
        )


def _copy_app(folder: Path) -> Any:
    for package in ("fed3r_app", "strategies", "clients"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / package, folder / package, ignore=ignored)
    shutil.copy(PROJECT / "pyproject.toml", folder)
    return folder


def _toml(value: Any) -> Any:
    return json.dumps(value)  # the same for strings, numbers and booleans


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("engine")
    environment = {
        "FED3R_CACHE_DIR": str(root / "cache"),
        "FED3R_OUTPUT_DIR": str(root / "runs"),
    }
    with EphemeralSuperLink(root / "home", environment) as superlink:
        yield Engine(superlink, root)


_FAULTY_CLIENT = '''\
import os
import signal
from pathlib import Path

from flwr.clientapp import ClientApp

from fed3r_app.client_app import app as sound_app

ONCE = Path({marker!r})


def strike():
    {fault}


class FaultyApp(ClientApp):
    """Strikes when client 1 is first asked for its statistics."""

    def __call__(self, message, context):
        asked = message.metadata.message_type == "train.statistics"
        if asked and context.node_config["partition-id"] == 1 and not ONCE.exists():
            ONCE.touch()
            strike()
        return sound_app(message, context)


app = FaultyApp()
'''


@pytest.fixture
def faulty_app(tmp_path: Path) -> Any:
    """Make an app like ours whose client 1 does something bad once."""

    def make(fault: Any) -> Any:
        text = (PROJECT / "pyproject.toml").read_text()
        for old, new in (
            ('name = "fed3r-flower"', 'name = "faulty"'),
            ("fed3r_app.server_app:app", "faulty.server_app:app"),
            ("fed3r_app.client_app:app", "faulty.client_app:app"),
            ('"fed3r_app/**/*.py"', '"faulty/**/*.py"'),
            ('    "strategies/**/*.py",\n', ""),
            ('    "clients/**/*.py",\n', ""),
        ):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        package = tmp_path / "app" / "faulty"
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(text)
        (package / "__init__.py").touch()
        (package / "server_app.py").write_text(
            "from fed3r_app.server_app import app\n\n__all__ = ['app']\n"
        )
        (package / "client_app.py").write_text(
            _FAULTY_CLIENT.format(marker=str(tmp_path / "struck"), fault=fault)
        )
        return package.parent

    return make
