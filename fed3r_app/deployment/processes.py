"""Flower's programs as processes of this machine, started and stopped together.

The same programs with the same options as on many machines, on free ports of
127.0.0.1 and in folders of their own. Whatever is killed can be started again: the
SuperLink keeps its state in a file, and runs its apps outside of itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from fed3r_app.deployment.superlink import SuperLink, flower_environment

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


_PACKAGE = Path(__file__).parents[1]
INSTALLED_APP = _PACKAGE.parent  # the clone, or the site-packages of a wheel
Value = str | int | float | bool
SUPERLINK, SUPEREXEC = "superlink", "superexec"
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"
_POLL_SECONDS = 0.5


class FlowerProcesses:
    """A context manager around a SuperLink and what belongs to it, in one group.

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
        fixed = {**flower_environment(home), **_ENVIRONMENT}
        self.environment = {**fixed, **(environment or {})}
        self._processes: list[subprocess.Popen[bytes]] = []

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
        return SuperLink(self.address, self._root_certificate())

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
        """Start the SuperLink and what runs its apps."""
        raise NotImplementedError

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
    """Make a folder that holds what Flower bundles of an app; return it.

    Parameters
    ----------
    app : Path
        The app's folder; ``INSTALLED_APP`` is that of this installation.
    target : Path
        Replaced where it is there.
    """
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


def _signal_group(group: int, number: int) -> bool:
    """Send a signal (0: none) to a process group; return whether it is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


class Deployment(FlowerProcesses):
    """A context manager around the processes of a deployment.

    Parameters
    ----------
    home : Path
        Folder of its files: Flower's state, one log per process.
    environment : Mapping[str, str]
        Further environment variables, for all processes.
    certificates : Path or None
        Folder made by ``fed3r certificates``: connections are encrypted, and only
        nodes whose key is registered may connect. None: neither.
    """

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str] | None = None,
        certificates: Path | None = None,
    ) -> None:
        super().__init__(home, environment)
        self._certificates = certificates
        self._named: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return self._log_file(name).read_text(errors="replace")

    def start_superlink(self) -> None:
        """Start the SuperLink, again where it was killed, and wait until it is up."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--isolation", "process", "--database", str(self.home / "state.db")]
        if self._certificates:
            command += ["--ssl-ca-certfile", str(self._certificates / "ca.crt")]
            command += ["--ssl-certfile", str(self._certificates / "server.crt")]
            command += ["--ssl-keyfile", str(self._certificates / "server.key")]
            command += ["--enable-supernode-auth", *self._superexec_secret()]
        else:
            command += ["--insecure"]
        self._wait_until_healthy(self._start_named(SUPERLINK, command))

    def start_superexec(self) -> None:
        """Start what starts the ServerApps."""
        command = ["flower-superexec", *self._client_security()]
        command += self._superexec_secret()
        self._start_named(SUPEREXEC, [*command, "--runtime-api-address", self.address])

    def start_supernode(
        self,
        name: str,
        node_config: Mapping[str, Value],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a SuperNode, again where it was killed.

        Parameters
        ----------
        name : str
            Of the process; with certificates, its private key is ``nodes/<name>``.
        node_config : Mapping[str, str | int | float | bool]
            What the client's app learns of it.
        environment : Mapping[str, str]
            Further environment variables, for this node.
        """
        port = self._ports.setdefault(name, free_port())
        command = ["flower-supernode", *self._client_security()]
        command += ["--superlink", self.address, "--port", str(port)]
        command += ["--node-config", toml(node_config)]
        if self._certificates:
            key = self._certificates / "nodes" / name
            command += ["--auth-supernode-private-key", str(key)]
        self._start_named(name, command, environment)

    def register(self, name: str) -> None:
        """Let the node of that name connect, by its public key ``nodes/<name>.pub``."""
        assert self._certificates is not None
        self.superlink.register(self._certificates / "nodes" / f"{name}.pub")

    def submit(self, app: Path, run_config: Mapping[str, Value]) -> str:
        """Hand a run to the SuperLink; return its id."""
        settings = [toml(run_config)] if run_config else []
        return str(self.superlink.start(self.stage(app), settings))

    def wait(self, run: str, timeout: float) -> str:
        """Return the status of a run that has ended, such as ``finished:completed``.

        Parameters
        ----------
        run : str
            Its id.
        timeout : float
            Seconds after which it is an error that it still runs.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # While its app runs, nothing is asked of a SuperLink that may be gone.
            if not self.find(SERVER_APP) and "finished" in (status := self.status(run)):
                return status
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"Run {run} did not end within {timeout:g} s.")

    def status(self, run: str) -> str:
        """Return the status of a run."""
        return self.superlink.status(run_id=int(run))

    def output(self, run: str) -> str:
        """Return what the ServerApp of a run has logged."""
        command = ["flwr", "log", run, "--show"]
        done = subprocess.run(
            command, env=self.environment, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"flwr log failed: {done.stdout}{done.stderr}")
        return done.stdout

    def find(self, program: str, node: str | None = None) -> list[int]:
        """Return the ids of this deployment's processes that run a program.

        Parameters
        ----------
        program : str
            Such as ``SERVER_APP``.
        node : str or None
            Only those that a SuperNode started.
        """
        port = f"127.0.0.1:{self._ports[node]}" if node else ""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) != self._processes[0].pid:
                    continue
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue  # it has just ended
            if any(Path(word).name == program for word in words[:2]) and (
                not port or port in words
            ):
                found.append(int(folder.name))
        return found

    def kill(self, name: str) -> None:
        """Kill a process that was started here, which gets no chance to clean up."""
        process = self._named.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def exit_code(self, name: str, timeout: float) -> int:
        """Return the exit code of a process that ends by itself."""
        return self._named[name].wait(timeout)

    def _start_processes(self) -> None:
        self.start_superlink()
        self.start_superexec()

    def _start_named(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        variables = [f"{key}={value}" for key, value in (environment or {}).items()]
        if variables:
            command = ["env", *variables, *command]
        with self._log_file(name).open("ab") as log:
            self._named[name] = self._start(command, log)
        return self._named[name]

    def _log_file(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _client_security(self) -> list[str]:
        if certificate := self._root_certificate():
            return ["--root-certificates", str(certificate)]
        return ["--insecure"]

    def _superexec_secret(self) -> list[str]:
        if not self._certificates:
            return []
        secret = self._certificates / "superexec.secret"
        return ["--superexec-auth-secret-file", str(secret)]

    def _root_certificate(self) -> Path | None:
        return self._certificates and self._certificates / "ca.crt"


def toml(settings: Mapping[str, Value]) -> str:
    """Return settings as Flower's command line takes them: ``k=1 k2="text"``."""
    # JSON writes strings, numbers and booleans as TOML does.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
