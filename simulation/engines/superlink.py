"""Flower's own simulation: a SuperLink for one purpose, started on a free port.

``flwr run . local`` shares one SuperLink per machine, which stays up, keeps the
environment and the working directory of the command that started it, and always runs on
the same port. An ephemeral one depends on nothing and leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fed3r_app.console.progress import show_line
from fed3r_app.deployment.follow import LATER_SECONDS, Follower
from fed3r_app.deployment.processes import (
    FlowerProcesses,
    Value,
    toml,
    write_run_config,
)
from fed3r_app.deployment.programs import superexec_command
from fed3r_app.deployment.relay import Relay, Show
from fed3r_app.errors import RunError, RunStopped

_SAVE_SECONDS = 60.0  # for gigabytes, at most


class EphemeralSuperLink(FlowerProcesses):
    """A context manager around a SuperLink in simulation mode; see its base class."""

    def run(self, *arguments: str, output: Path | None = None) -> None:
        """Run an app with live output; raise a RunError unless it completes.

        The arguments are the app's folder and options of ``flwr run``; the output goes
        to a file, where one is given. On Ctrl-C the app saves what it has, which is a
        RunStopped.
        """
        app, *options = arguments
        run = self.superlink.start(self.stage(Path(app)), [], *options)
        with _showing_in(output) as show:
            # All are on this machine, and Ray takes its time to start.
            follower = Follower(self.superlink, run, Relay(show), LATER_SECONDS)
            try:
                follower.follow()
            except (KeyboardInterrupt, SystemExit):
                at_work = self.find("flwr-simulation")
                for process in at_work:
                    os.kill(process, signal.SIGINT)  # Ray has taken SIGTERM for itself
                if not at_work:
                    raise RunStopped("The run was stopped.") from None
                try:
                    follower.follow(_SAVE_SECONDS)
                except RunError as error:
                    raise RunStopped(str(error)) from None

    def simulate(
        self,
        app: Path,
        settings: Mapping[str, Value],
        num_clients: int,
        federation: Mapping[str, Value] | None = None,
        output: Path | None = None,
    ) -> None:
        """Run an app on simulated clients; raise a RunError unless it completes.

        See ``run``. ``federation`` adds to Flower's federation config; else each client
        may use one processor.
        """
        nodes = {"num-supernodes": num_clients, "client-resources-num-cpus": 1}
        options = ("--federation-config", toml({**nodes, **(federation or {})}))
        run_config = write_run_config(self.home, settings)
        self.run(str(app), "--run-config", run_config, *options, output=output)

    def _start_processes(self) -> None:
        """Start the SuperLink, then what runs its apps, in one process group.

        Left to itself, the SuperLink starts the second in a session of its own, where
        no signal to the group would reach it, nor Ray.
        """
        command = ["flower-superlink", "--insecure", "--simulation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--isolation", "process", "--log-file", str(self.log_path)]
        self._wait_until_healthy(self._start(command))
        self._start(superexec_command(self.address, None))


@contextmanager
def _showing_in(output: Path | None) -> Iterator[Show]:
    """Give what shows a line, in a file where there is one."""
    if output is None:
        yield show_line
        return
    with output.open("a", encoding="utf-8") as file:
        yield lambda line: print(line, file=file, flush=True)


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
