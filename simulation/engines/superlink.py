"""Flower's own simulation: a SuperLink for one purpose, started on a free port.

``flwr run . local`` shares one SuperLink per machine, which stays up, keeps the
environment and the working directory of the command that started it, and always runs on
the same port. An ephemeral one depends on nothing and leaves nothing behind.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fed3r_app.deployment.processes import (
    FlowerProcesses,
    Value,
    toml,
    write_run_config,
)
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

    def simulate(
        self,
        app: Path,
        settings: Mapping[str, Value],
        num_clients: int,
        federation: Mapping[str, Value] | None = None,
        output: Path | None = None,
    ) -> bool:
        """Run an app on simulated clients; return whether the run completed.

        ``federation`` adds to Flower's federation config; else each client may use one
        processor.
        """
        nodes = {"num-supernodes": num_clients, "client-resources-num-cpus": 1}
        options = ("--federation-config", toml({**nodes, **(federation or {})}))
        run_config = write_run_config(self.home, settings)
        return self.run(str(app), "--run-config", run_config, *options, output=output)

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


@contextmanager
def private_superlink(parent: Path) -> Iterator[EphemeralSuperLink]:
    """Give a SuperLink whose home is a new folder in ``parent``, removed afterwards.

    So that any number of them may run at once. The log of the last one stays, as
    ``superlink.log`` in ``parent``.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix="run-", dir=parent.absolute(), ignore_cleanup_errors=True
    ) as home:
        superlink = EphemeralSuperLink(Path(home))
        try:
            with superlink:
                yield superlink
        finally:
            with suppress(FileNotFoundError):
                superlink.log_path.replace(parent / superlink.log_path.name)
