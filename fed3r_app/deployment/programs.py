"""Flower's programs as they are started here: one place that knows their options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fed3r_app.deployment.certificates import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SUPEREXEC_SECRET,
)
from fed3r_app.deployment.processes import Value, toml
from fed3r_app.deployment.superlink import SuperLink


def superlink_command(
    host: str, port: int, database: Path, certificates: Path | None
) -> list[str]:
    """Return the command of a SuperLink whose runs survive its restart.

    With certificates, a folder as `fed3r certificates` makes it, connections are
    encrypted, and only nodes whose key is registered may connect.
    """
    command = ["flower-superlink", "--host", host, "--port", str(port)]
    command += ["--isolation", "process", "--database", str(database)]
    if certificates is None:
        return [*command, "--insecure"]
    for option, name in (
        ("--ssl-ca-certfile", CA_CERTIFICATE),
        ("--ssl-certfile", SERVER_CERTIFICATE),
        ("--ssl-keyfile", SERVER_KEY),
        ("--superexec-auth-secret-file", SUPEREXEC_SECRET),
    ):
        command += [option, str(certificates / name)]
    return [*command, "--enable-supernode-auth"]


def superexec_command(address: str, certificates: Path | None) -> list[str]:
    """Return the command of what starts the ServerApps of a SuperLink."""
    command = ["flower-superexec", "--runtime-api-address", address]
    if certificates is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(certificates / CA_CERTIFICATE)]
    secret = certificates / SUPEREXEC_SECRET
    return [*command, "--superexec-auth-secret-file", str(secret)]


def supernode_command(
    superlink: SuperLink,
    node_config: Mapping[str, Value],
    port: int,
    key: Path | None = None,
) -> list[str]:
    """Return the command of a SuperNode; ``key`` is its private key."""
    root = superlink.root_certificates
    command = ["flower-supernode", "--superlink", superlink.address]
    command += ["--root-certificates", str(root)] if root else ["--insecure"]
    command += ["--port", str(port), "--node-config", toml(node_config)]
    return command + (["--auth-supernode-private-key", str(key)] if key else [])
