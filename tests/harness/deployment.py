"""The programs of a deployment as processes of this machine, for tests.

SuperLink, SuperExec and SuperNodes, each with a log, killed and started again at will.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fed3r_app.deployment.local import LocalDeployment
from fed3r_app.deployment.processes import Value, free_port, toml

PROJECT = Path(__file__).parents[2]
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"
_POLL_SECONDS = 0.5


class Deployment(LocalDeployment):
    """A deployment whose processes are watched, killed and started again at will."""

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return self.log_file(name).read_text(errors="replace")

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

    def start_node(self, name: str, data: Path) -> None:
        """Start a node with images of its own, again if it was killed."""
        port = self._ports.setdefault(name, free_port())
        command = [sys.executable, "-u", "-m", "fed3r_app.cli", "node", self.address]
        command += ["--data", str(data), "--client-id", name, "--port", str(port)]
        if self._certificates:
            command += ["--root-certificates", str(self._certificates / "ca.crt")]
            command += ["--key", str(self._certificates / "nodes" / name)]
        cache = {"FED3R_CACHE_DIR": str(self.home / "caches" / name)}
        self._start_named(name, command, cache)

    def process(self, name: str) -> int:
        """Return the id of a process that was started here."""
        return self._named[name].pid

    def kill(self, name: str) -> None:
        """Kill a process that was started here, which gets no chance to clean up."""
        process = self._named.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def exit_code(self, name: str, timeout: float) -> int:
        """Return the exit code of a process that ends by itself."""
        return self._named[name].wait(timeout)
