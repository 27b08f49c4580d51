"""A SuperNode of this machine: started with the right options, and until it is let in.

With node authentication Flower refuses a node that was killed for about a minute, as
long as it takes it for online; its SuperNode then ends. This one tries again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fed3r_app.deployment.nodes import UNREGISTERED, KnownNode, find_node, public_key_of
from fed3r_app.deployment.output import OutputPrinter
from fed3r_app.deployment.process_group import ProcessGroup
from fed3r_app.deployment.processes import ENVIRONMENT, Value
from fed3r_app.deployment.programs import supernode_command
from fed3r_app.deployment.superlink import SuperLink
from fed3r_app.errors import RunError

_REFUSAL = "[code: 2004]"  # Flower's "Failed to activate SuperNode"
_PATIENCE_SECONDS, _PAUSE_SECONDS = 90.0, 5.0
_STOP_SECONDS = 10.0  # Flower takes five to sign off


@dataclass
class SuperNode:
    """A node with images of its own.

    Parameters
    ----------
    data : Path
        The folder of its images, or a table of them.
    client_id : str
        The name under which it takes part.
    key : Path or None
        Its private key, where nodes are authenticated.
    port : int
        A port of this machine, for itself.
    backbone, weights : str
        What of these is the node's own choice; "" for what a run says.
    """

    superlink: SuperLink
    data: Path
    client_id: str
    key: Path | None = None
    port: int = 9094
    backbone: str = ""
    weights: str = ""

    @property
    def node_config(self) -> dict[str, Value]:
        """What the ClientApps of this node are told."""
        own: dict[str, Value] = {"backbone": self.backbone, "weights": self.weights}
        weights = Path(self.weights).expanduser()
        if self.weights and weights.exists():
            own["weights"] = str(weights.absolute())
        return {
            "data-path": str(self.data.expanduser().absolute()),
            "client-id": self.client_id,
            **{key: value for key, value in own.items() if value},
        }

    def check(self) -> KnownNode | None:
        """Return what the SuperLink knows of the node, None if that can't be found out.

        Raises RunError if it can't let the node in, whatever is tried.
        """
        if self.key is None:
            return None
        public_key = public_key_of(self.key)
        try:
            node = find_node(self.superlink, public_key)
        except OSError:  # as behind a proxy that lets nodes through, and nothing else
            return None
        if node is None:
            raise RunError(
                f"The SuperLink at {self.superlink.address} does not know the key "
                f"{self.key}. On its side, {self._registering}."
            )
        if node.status == UNREGISTERED:
            raise RunError(
                f"The key {self.key} was unregistered, and Flower never lets it in "
                "again. Make a new one for this node."
            )
        if node.name and node.name != self.client_id:
            raise RunError(
                "--client-id must be the name under which the node's key is "
                f"registered, {node.name!r}, got {self.client_id!r}."
            )
        return node

    def run(self) -> int:
        """Run the SuperNode until it ends; return its exit code.

        A refusal of Flower's is waited out for 90 s.
        """
        refused_at: float | None = None
        while True:
            code, was_refused = self._run_once()
            if not was_refused:
                return code
            now, known = time.monotonic(), self.check()
            if refused_at is None:
                refused_at = now
                _say(self._refusal(known))
            elif now - refused_at > _PATIENCE_SECONDS:
                raise RunError(self._last_refusal(known))
            time.sleep(_PAUSE_SECONDS)

    @property
    def _registering(self) -> str:
        """What lets the node in."""
        command = f"fed3r register {self.superlink.address} {self.key}.pub"
        return f"register it: {command} --name {self.client_id}"

    def _refusal(self, known: KnownNode | None) -> str:
        """Return why the SuperLink does not let the node in, and what is done."""
        killed = f"{self.client_id} was killed less than a minute ago"
        why = (
            f"Its key is known, but passes for online: {killed}, or another process "
            "uses the key."
            if known
            else f"Either {killed}, or its key is not registered."
        )
        return (
            f"The SuperLink refused this node. {why} Trying again for "
            f"{_PATIENCE_SECONDS:g} s."
        )

    def _last_refusal(self, known: KnownNode | None) -> str:
        """Return why it was refused to the end."""
        said = f"The SuperLink refused this node for {_PATIENCE_SECONDS:g} s"
        used = f"another process uses the key {self.key}. Stop that one"
        if known:
            return f"{said}: {used}."
        return f"{said}: {used}; or its key is not known there: {self._registering}."

    def _run_once(self) -> tuple[int, bool]:
        """Run Flower's SuperNode; return its exit code and whether it was refused."""
        command = supernode_command(
            self.superlink, self.node_config, self.port, self.key
        )
        # The programs of this Python environment before those of any other.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        group = ProcessGroup({**ENVIRONMENT, **os.environ, "PATH": path})
        try:
            process = group.start(command, subprocess.PIPE)
            relay = OutputPrinter(process, _REFUSAL)
            code = process.wait()
        finally:
            group.stop(_STOP_SECONDS)
        relay.join()
        return code, relay.has_found


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
