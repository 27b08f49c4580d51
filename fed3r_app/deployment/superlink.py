"""A SuperLink that runs elsewhere: is it there, let nodes in, start a run on it.

Flower's own commands do the work. What they do not report is found out here: why there
is no connection, and whether a run completed.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fed3r_app.errors import RunError

if TYPE_CHECKING:
    from flwr.supercore.control.control_http_client import ControlHttpClient

COMPLETED = "finished:completed"
# No word to the outside.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_CONNECTION = "fed3r"
_TIMEOUT_SECONDS = 10.0  # far above a round trip, short for a person who waits
_HOSTNAME_MISMATCH, _IP_MISMATCH, _EXPIRED = 62, 64, 10  # of OpenSSL's verification


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs, whose files are below home."""
    # The programs of this Python environment before those of any other.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**QUIET, **os.environ, "PATH": path, "FLWR_HOME": str(home)}


@dataclass(frozen=True)
class SuperLink:
    """Where a SuperLink is, and how to know it."""

    address: str  # HOST:PORT
    root_certificates: Path | None = None  # who signed its certificate; None: no TLS

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                f"The SuperLink's address must be HOST:PORT, got {self.address!r}."
            )

    @property
    def _place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def check(self) -> None:
        """Raise an OSError that says why there is no connection, if there is none."""
        tls = self._tls()
        try:
            self._ask_for_health(tls)
        except (OSError, HTTPException) as error:
            raise self._unreachable(self._reason(error, tls)) from error

    def status(self, **which: int) -> str:
        """Return the status of a run, such as ``finished:completed``.

        It is the run of a ``run_id``, or the last one with ``limit=1``.
        """
        # Not with `flwr ls`, which takes seconds to start.
        from flwr.proto.control_pb2 import ListRunsRequest

        with self.control() as control:
            runs = control.ListRuns(ListRunsRequest(**which)).run_dict.values()
        for run in runs:
            return f"{run.status.status}:{run.status.sub_status}"
        asked = f"run {which['run_id']}" if "run_id" in which else "a run"
        raise RunError(f"The SuperLink at {self.address} must know {asked}, got none.")

    def write_config(self, home: Path) -> None:
        """Write the config of Flower's command line, with this SuperLink as default."""
        root = self.root_certificates
        tls = (
            {"root-certificates": str(root.absolute())} if root else {"insecure": True}
        )
        connection = {"address": self.address, **tls}
        config = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(tomli_w.dumps(config), "utf-8")

    def start(self, app: Path, run_config: Sequence[str], *more: str) -> int:
        """Start an app with settings as in ``flwr run``; return the id of the run.

        ``more`` are other options of ``flwr run``.
        """
        if not (app / "pyproject.toml").is_file():
            raise FileNotFoundError(
                f"--app must be the app's folder, got {app} without pyproject.toml."
            )
        options = [word for each in run_config for word in ("--run-config", each)]
        command = ["run", str(app), *options, *more, "--format", "json"]
        done = self._flwr(*command, stdout=subprocess.PIPE)
        # The exit code is 0 even after an error, which is in the output.
        answer = json.loads("".join(done.stdout.partition("{")[1:]) or "{}")
        if done.returncode or not answer.get("success"):
            reason = answer.get("error-message", done.stdout)
            raise RunError(f"The run was not started: {' '.join(reason.split())}")
        return int(answer["run-id"])

    @contextmanager
    def control(self) -> Iterator[ControlHttpClient]:
        """Yield a client of Flower's control interface; its errors become OSErrors."""
        import httpx
        from flwr.supercore.control.control_http_client import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        certificate = self.root_certificates
        client = ControlHttpClient.from_server_address(
            self.address,
            insecure=certificate is None,
            root_certificates=certificate.read_bytes() if certificate else None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield client
        except httpx.HTTPError as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise self._unreachable(f"{reason}.") from error
        finally:
            client.close()

    def _flwr(self, *arguments: str, **pipes: Any) -> subprocess.CompletedProcess[str]:
        """Call Flower's command line with this SuperLink as default."""
        with tempfile.TemporaryDirectory() as home:
            self.write_config(Path(home))
            environment = flower_environment(Path(home))
            return subprocess.run(
                ["flwr", *arguments], env=environment, check=False, text=True, **pipes
            )

    def _tls(self) -> ssl.SSLContext | None:
        if self.root_certificates is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.root_certificates)
        except OSError as error:  # ssl.SSLError is one, too
            raise OSError(
                "--root-certificates must be a file with a PEM certificate, got "
                f"{self.root_certificates} ({error.strerror or error})."
            ) from error

    def _ask_for_health(self, tls: ssl.SSLContext | None) -> None:
        place, timeout = self._place, _TIMEOUT_SECONDS
        with closing(
            HTTPSConnection(*place, timeout=timeout, context=tls)
            if tls
            else HTTPConnection(*place, timeout=timeout)
        ) as connection:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        if status != 200:
            raise OSError(f"it answers, but not as a SuperLink (status {status})")

    def _speaks_tls(self) -> bool:
        try:  # without a check of the certificate
            ssl.get_server_certificate(self._place, timeout=_TIMEOUT_SECONDS)
        except OSError:
            return False
        return True

    def _reason(self, error: Exception, tls: ssl.SSLContext | None) -> str:
        """Return why there is no connection, and what to do about it."""
        if isinstance(error, socket.gaierror):
            return f"the host is not known ({error.strerror})."
        if isinstance(error, ConnectionRefusedError):
            return "nothing listens there. Is it started?"
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._distrust(error)
        if isinstance(error, ssl.SSLError):
            return "it does not speak TLS. Was it started with --insecure?"
        if tls is None and self._speaks_tls():
            return "it speaks TLS only. Give --root-certificates ca.crt."
        return f"{error or type(error).__name__}."

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code in (_HOSTNAME_MISMATCH, _IP_MISMATCH):
            host, _ = self._place
            return (
                f"its certificate does not name {host}. Make one with --host {host}, "
                "or use a name it has."
            )
        if error.verify_code == _EXPIRED:
            return (
                "its certificate has expired. Renew it: fed3r certificates DIR --renew"
            )
        return (
            f"its certificate is not signed by {self.root_certificates} "
            f"({error.verify_message}). Is that the ca.crt of this SuperLink?"
        )

    def _unreachable(self, reason: str) -> OSError:
        return OSError(f"No connection to the SuperLink at {self.address}: {reason}")
