"""Flower's programs as they are started here: one place that knows their options."""

from __future__ import annotations

from pathlib import Path

from fed3r_app.deployment.certificates import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SUPEREXEC_SECRET,
)


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
