"""A deployment on this machine: SuperLink, SuperExec and nodes, each with a log."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from fed3r_app.deployment.certificates import CA_CERTIFICATE, NODES
from fed3r_app.deployment.nodes import register_node
from fed3r_app.deployment.processes import FlowerProcesses, Value, free_port
from fed3r_app.deployment.programs import (
    superexec_command,
    superlink_command,
    supernode_command,
)
from fed3r_app.deployment.superlink import SuperLink

SUPERLINK, SUPEREXEC = "superlink", "superexec"


class LocalDeployment(FlowerProcesses):
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
        root = self._certificates and self._certificates / CA_CERTIFICATE
        return SuperLink(self.address, root)

    def start_superlink(self) -> None:
        """Start the SuperLink, again where it was killed, and wait until it is up."""
        place = ("127.0.0.1", self.port, self.home / "state.db")
        command = superlink_command(*place, self._certificates)
        self._wait_until_healthy(self._start_named(SUPERLINK, command))

    def start_superexec(self) -> None:
        """Start what starts the ServerApps."""
        command = superexec_command(self.address, self._certificates)
        self._start_named(SUPEREXEC, command)

    def start_supernode(
        self,
        name: str,
        node_config: Mapping[str, Value],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a SuperNode, again where it was killed."""
        port = self._ports.setdefault(name, free_port())
        key = self._certificates and self._certificates / NODES / name
        command = supernode_command(self.superlink, node_config, port, key)
        self._start_named(name, command, environment)

    def register(self, name: str) -> None:
        """Let the node of that name connect, by its public key ``nodes/<name>.pub``."""
        assert self._certificates is not None
        register_node(self.superlink, self._certificates / NODES / f"{name}.pub", name)

    def log_file(self, name: str) -> Path:
        """Return where a process writes its log."""
        return self.home / f"{name}.log"

    def ended(self) -> list[str]:
        """Return the names of processes that have ended by themselves."""
        return [name for name, process in self._named.items() if process.poll()]

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
        with self.log_file(name).open("ab") as log:
            self._named[name] = self._start(command, log)
        return self._named[name]
