"""The programs of a deployment as processes of this machine, for tests.

SuperLink, SuperExec and SuperNodes, each with a log, killed and started again at will.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from fed3r_app.deployment.processes import FlowerProcesses, Value, free_port, toml
from fed3r_app.deployment.superlink import SuperLink

PROJECT = Path(__file__).parents[2]
SUPERLINK, SUPEREXEC = "superlink", "superexec"
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"
_POLL_SECONDS = 0.5


class Deployment(FlowerProcesses):
    """A context manager around the processes of a deployment.

    With certificates, a folder made by ``fed3r certificates``, connections are
    encrypted, and only nodes whose key is registered may connect.
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

    @property
    def superlink(self) -> SuperLink:
        """How to reach it."""
        root = self._certificates and self._certificates / "ca.crt"
        return SuperLink(self.address, root)

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
        """Start a SuperNode, again where it was killed."""
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
        """Return the status of a run that has ended, such as ``finished:completed``."""
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

    def find(self, program: str) -> list[int]:
        """Return the ids of this deployment's processes that run a program."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) != self._processes[0].pid:
                    continue
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue  # it has just ended
            if any(Path(word).name == program for word in words[:2]):
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
        if self._certificates:
            return ["--root-certificates", str(self._certificates / "ca.crt")]
        return ["--insecure"]

    def _superexec_secret(self) -> list[str]:
        if not self._certificates:
            return []
        secret = self._certificates / "superexec.secret"
        return ["--superexec-auth-secret-file", str(secret)]
