"""Flower's programs as processes of this machine, started and stopped together.

The same programs with the same options as on many machines, on free ports of
127.0.0.1 and in folders of their own. Whatever is killed can be started again: the
SuperLink keeps its state in a file, and runs its apps outside of itself.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import tomli_w

from fed3r_app.deployment.process_group import PATIENT_THREADS, ProcessGroup
from fed3r_app.deployment.superlink import QUIET, SuperLink, flower_environment

_START_SECONDS = 60.0  # passed only if something is wrong, or all cores are busy
# Flower's processes take five seconds to end by themselves. Nothing of theirs is needed
# afterwards, and what an app saves it replaces in one step, so they aren't waited for.
_STOP_SECONDS = 0.5
# Use the environment at hand instead of installing torch again for every run.
ENVIRONMENT = {
    **QUIET,
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **PATIENT_THREADS,
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
_PACKAGE = Path(__file__).parents[1]
INSTALLED_APP = _PACKAGE.parent  # the clone, or the site-packages of a wheel
Value = str | int | float | bool


class FlowerProcesses:
    """A context manager around a SuperLink and all it starts, in one process group.

    Their ``FLWR_HOME`` (state, logs, installed apps) is ``home``; ``environment`` adds
    to their environment variables.
    """

    def __init__(
        self, home: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.port = free_port()
        fixed = flower_environment(home) | ENVIRONMENT
        self.environment = {**fixed, **(environment or {})}
        self._group = ProcessGroup(self.environment)

    def __enter__(self) -> Self:
        self.superlink.write_config(self.home)
        try:
            self._start_processes()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def superlink(self) -> SuperLink:
        """How to reach it."""
        return SuperLink(self.address)

    @property
    def log_path(self) -> Path:
        """Where the SuperLink writes its log."""
        return self.home / "superlink.log"

    def stage(self, app: Path) -> Path:
        """Return a copy of an app's folder with just what Flower bundles of it.

        Flower looks at every file below the folder it is given, and an environment in
        it has tens of thousands.
        """
        return stage_app(app, self.home / "app")

    def stop(self) -> None:
        """Stop the SuperLink and everything it started."""
        self._group.stop(_STOP_SECONDS)

    def find(self, program: str) -> list[int]:
        """Return the ids of the group's processes that run a program.

        None are found where the system does not list them in /proc, as macOS.
        """
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) != self._group.id:
                    continue
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue  # it has just ended
            if any(Path(word).name == program for word in words[:2]):
                found.append(int(folder.name))
        return found

    def _start_processes(self) -> None:
        """Start the SuperLink and what runs its apps."""
        raise NotImplementedError

    def _start(
        self, command: list[str], log: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process in the group."""
        return self._group.start(command, log)

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                return self.superlink.check()
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"The SuperLink did not start. See {self.log_path}.")


def app_settings(app: Path) -> dict[str, Any]:
    """Return an app's settings for Flower; raise ValueError if it is no app."""
    try:
        with _pyproject(app).open("rb") as file:
            settings: dict[str, Any] = tomllib.load(file)["tool"]["flwr"]["app"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"{app.absolute()} must be the app's folder, got no pyproject.toml of a "
            "Flower app there."
        ) from error
    return settings


def stage_app(app: Path, target: Path) -> Path:
    """Make or replace a folder with what Flower bundles of an app; return it."""
    patterns = ["README.md", *app_settings(app).get("fab-include", ["**/*.py"])]
    shutil.rmtree(target, ignore_errors=True)
    sources = {
        path: path.relative_to(app) for each in patterns for path in app.glob(each)
    }
    for source, place in {**sources, _pyproject(app): Path("pyproject.toml")}.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / place)
    return target


def _pyproject(app: Path) -> Path:
    """Return the project file of an app; a wheel keeps it inside of the package."""
    own, packaged = app / "pyproject.toml", _PACKAGE / "pyproject.toml"
    return packaged if app == INSTALLED_APP and not own.exists() else own


def free_port() -> int:
    """Return a port of this machine that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def toml(settings: Mapping[str, Value]) -> str:
    """Return settings as Flower's command line takes them: ``k=1 k2="text"``."""
    # JSON writes strings, numbers and booleans as TOML does.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def write_run_config(folder: Path, settings: Mapping[str, Value]) -> str:
    """Return a file with settings for Flower's ``--run-config``.

    On the command line, Flower drops what it does not understand.
    """
    path = folder / "run-config.toml"
    path.write_text(tomli_w.dumps(settings), "utf-8")
    return str(path)
