"""A SuperLink for one purpose: started on a free port, stopped at the end.

``flwr run . local`` shares one SuperLink per machine, which stays up, keeps the
environment and the working directory of whoever started it first, and always runs
on the same port. A private one depends on nothing and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from fed3r_app.superlink import COMPLETED, SuperLink

_START_SECONDS = 60.0
# Flower's processes take five seconds to end by themselves. Nothing of theirs is needed
# afterwards, and what an app saves it replaces in one step, so they aren't waited for.
_STOP_SECONDS = 0.5
# Use the environment at hand instead of installing torch again for every run; no word
# to the outside.
_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The clients keep all processors busy: threads of the server that wait in a loop
    # for one another would make its small products many times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


class PrivateSuperLink:
    """A context manager around a SuperLink in simulation mode.

    Parameters
    ----------
    home : Path
        Its ``FLWR_HOME``: state, logs, installed apps.
    environment : Mapping[str, str]
        Further environment variables, for the SuperLink and all it starts.
    """

    def __init__(
        self, home: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.port = free_port()
        # The programs of this Python environment before those of any other.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {
            **os.environ,
            **_ENVIRONMENT,
            "PATH": path,
            "FLWR_HOME": str(home),
            **(environment or {}),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PrivateSuperLink:
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
        return SuperLink(self.address, self._root_certificate())

    @property
    def log_path(self) -> Path:
        """Where the SuperLink writes its log."""
        return self.home / "superlink.log"

    def run(self, *arguments: str, output: Path | None = None) -> bool:
        """Call ``flwr run`` with live output; return whether the run completed.

        Flower's command ends well whatever became of the run, so its status is asked.

        Parameters
        ----------
        *arguments : str
            The app's folder, and options of ``flwr run``.
        output : Path or None
            File for the output; None shows it.
        """
        app, *options = arguments
        command = ["flwr", "run", str(self.stage(Path(app))), *options, "--stream"]
        with output.open("wb") if output else nullcontext() as file:
            started = subprocess.run(
                command,
                env=self.environment,
                check=False,
                stdout=file,
                stderr=subprocess.STDOUT if file else None,
            )
        return started.returncode == 0 and self.last_status() == COMPLETED

    def stage(self, app: Path) -> Path:
        """Return a copy of an app's folder with just what Flower bundles of it.

        Flower looks at every file below the folder it is given, and an environment in
        it has tens of thousands.
        """
        settings = app_settings(app)
        staged = self.home / "app"
        shutil.rmtree(staged, ignore_errors=True)
        for pattern in (
            "pyproject.toml",
            "README.md",
            *settings.get("fab-include", ["**/*.py"]),
        ):
            for source in app.glob(pattern):
                target = staged / source.relative_to(app)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        return staged

    def last_status(self) -> str:
        """Return the status of the last run, such as ``finished:completed``."""
        return self.superlink.status(limit=1)

    def stop(self) -> None:
        """Stop the SuperLink and everything it started."""
        if not self._processes:
            return
        group = self._processes[0].pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            if _signal_group(group, number):
                self._wait_until_gone(group)
        self._processes = []

    def _root_certificate(self) -> Path | None:
        """Return the certificate that the SuperLink is known by; None without TLS."""
        return None

    def _start_processes(self) -> None:
        """Start the SuperLink, then what runs its apps, in one process group.

        Left to itself, the SuperLink starts the second in a session of its own, where
        no signal to the group would reach it, nor Ray.
        """
        command = ["flower-superlink", "--insecure", "--simulation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--isolation", "process", "--log-file", str(self.log_path)]
        self._wait_until_healthy(self._start(command))
        self._start(
            ["flower-superexec", "--insecure", "--runtime-api-address", self.address]
        )

    def _start(
        self, command: list[str], log: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process in the group of the first one."""
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=self._processes[0].pid if self._processes else 0,
        )
        self._processes.append(process)
        return process

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                return self.superlink.check()
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"The SuperLink did not start. See {self.log_path}.")

    def _wait_until_gone(self, group: int) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        while _signal_group(group, 0) and time.monotonic() < deadline:
            for process in self._processes:
                process.poll()  # takes leave of a child that has ended
            time.sleep(0.05)


def app_settings(app: Path) -> dict[str, Any]:
    """Return what an app's folder tells Flower; raise ValueError if it is no app's."""
    try:
        with (app / "pyproject.toml").open("rb") as file:
            settings: dict[str, Any] = tomllib.load(file)["tool"]["flwr"]["app"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"{app.absolute()} must be the app's folder, got no pyproject.toml of a "
            "Flower app there."
        ) from error
    return settings


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _signal_group(group: int, number: int) -> bool:
    """Send a signal (0: none) to a process group; return whether it is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
