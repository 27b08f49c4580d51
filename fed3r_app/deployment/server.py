"""A SuperLink with its SuperExec as one program: ``fed3r superlink``.

They are child processes in groups of their own, of which none outlives this process.
One that dies is started again: the SuperLink keeps its state in a file, and its runs
live in the other's group. When this process is told to end, the ServerApps get time to
save what they have.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fed3r_app.deployment.certificates import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SUPEREXEC_SECRET,
)
from fed3r_app.deployment.output import OutputPrinter
from fed3r_app.deployment.process_group import ProcessGroup
from fed3r_app.deployment.processes import ENVIRONMENT
from fed3r_app.deployment.programs import superexec_command, superlink_command
from fed3r_app.deployment.superlink import SuperLink, flower_environment
from fed3r_app.errors import RunError

_LOOPBACK = ("127.0.0.1", "localhost")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1"}  # where that is reached from here
_START_SECONDS = 60.0
# What ends sooner than that would end again.
_SHORTEST_LIFE = 5.0
# A ServerApp writes a snapshot; a SuperLink waits for connections that nobody closes.
_APPS_STOP_SECONDS, _SUPERLINK_STOP_SECONDS = 30.0, 10.0
_POLL_SECONDS = 0.2


class Server:
    """A SuperLink and its SuperExec.

    Parameters
    ----------
    host, port
        Where the SuperLink listens.
    database : Path
        Its state. Only the owner may read it, and what is beside it.
    certificates : Path or None
        A folder as ``fed3r certificates`` makes it; None: no TLS, on this machine only.
    """

    def __init__(
        self, host: str, port: int, database: Path, certificates: Path | None
    ) -> None:
        _check(host, certificates)
        here = f"{_EVERYWHERE.get(host, host)}:{port}"
        root = certificates / CA_CERTIFICATE if certificates else None
        self.superlink = SuperLink(here, root)
        self._database = database
        self._commands = {
            "SuperLink": superlink_command(host, port, database, certificates),
            "SuperExec": superexec_command(here, certificates),
        }
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        environment = {**ENVIRONMENT, **flower_environment(home)}
        self._groups = {name: ProcessGroup(environment) for name in self._commands}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}

    def serve(self) -> None:
        """Run both until this process is told to end; raise if one can't be run."""
        os.umask(0o077)  # databases, results and caches are as private as the data
        self._make_private()
        with _signals_end_it():
            try:
                self._start("SuperLink")
                self._wait_until_healthy()
                self._start("SuperExec")
                print(f"The SuperLink at {self.superlink.address} is up.", flush=True)
                while True:
                    self._start_the_dead_again()
                    time.sleep(_POLL_SECONDS)
            except KeyboardInterrupt:
                print("Stopping …", flush=True)
            finally:
                self._groups["SuperExec"].stop(_APPS_STOP_SECONDS)
                self._groups["SuperLink"].stop(_SUPERLINK_STOP_SECONDS)

    def _make_private(self) -> None:
        """Take from others what an earlier version let them read."""
        self._database.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self._database}{suffix}").chmod(0o600)

    def _start(self, name: str) -> None:
        self._started[name] = time.monotonic()
        group, command = self._groups[name], self._commands[name]
        self._children[name] = group.start(command, subprocess.PIPE)
        OutputPrinter(self._children[name])

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return self.superlink.check()
            except OSError as error:
                self._check_alive("SuperLink")
                is_final = isinstance(error.__cause__, ssl.SSLError)
                if is_final or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _check_alive(self, name: str) -> None:
        code = self._children[name].poll()
        if code is not None:
            raise RunError(
                f"The {name} must keep running, but it ended with exit code {code}. "
                "Its last words are above."
            )

    def _start_the_dead_again(self) -> None:
        for name, child in list(self._children.items()):
            if child.poll() is None:
                continue
            if time.monotonic() - self._started[name] < _SHORTEST_LIFE:
                self._check_alive(name)
            print(f"The {name} has ended ({child.returncode}), start it again.")
            sys.stdout.flush()
            self._start(name)


def _check(host: str, certificates: Path | None) -> None:
    """Raise unless a SuperLink may listen there."""
    if ":" in host:
        raise ValueError(f"--host must be a name or an IPv4 address, got {host!r}.")
    if certificates is None and host not in _LOOPBACK:
        raise ValueError(
            f"--certificates must be given to listen on {host}, got none: without TLS "
            "and keys of nodes, only this machine may connect (--host 127.0.0.1)."
        )
    names = (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY, SUPEREXEC_SECRET)
    for name in names if certificates else ():
        assert certificates is not None
        if not (certificates / name).is_file():
            raise FileNotFoundError(
                f"--certificates must be a folder with {', '.join(names)}, got "
                f"{certificates} without {name}. `fed3r certificates {certificates}` "
                "makes them."
            )


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does; a second one does no more."""

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
