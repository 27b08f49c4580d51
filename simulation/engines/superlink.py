"""Flower's own simulation: a SuperLink for one purpose, started on a free port.

``flwr run . local`` shares one SuperLink per machine, which stays up, keeps the
environment and the working directory of the command that started it, and always runs on
the same port. An ephemeral one depends on nothing and leaves nothing behind.
"""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from pathlib import Path

from fed3r_app.deployment.processes import FlowerProcesses
from fed3r_app.deployment.superlink import COMPLETED


class EphemeralSuperLink(FlowerProcesses):
    """A context manager around a SuperLink in simulation mode; see its base class."""

    def run(self, *arguments: str, output: Path | None = None) -> bool:
        """Call ``flwr run`` with live output; return whether the run completed.

        The exit code of ``flwr run`` is 0 also after a failed run: the status is asked.
        The arguments are the app's folder and options of ``flwr run``; the output goes
        to a file, where one is given.
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
        return started.returncode == 0 and self.superlink.status(limit=1) == COMPLETED

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
