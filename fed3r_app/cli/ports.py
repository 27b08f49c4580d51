"""Ports in options of `fed3r`: which may be given, and whether they are free."""

from __future__ import annotations

import argparse
import errno
import socket


def port(text: str) -> int:
    """Return the number in an option that must be a port."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, got {text!r}")
    return int(text)


def port_or_any(text: str) -> int:
    """Return the number in an option that must be a port, or 0 for any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {text!r}")
    return int(text)


def check_port(
    port: int | None, hint: str = "Give each SuperNode its own --port."
) -> None:
    """Raise an OSError if a port of this machine is taken; say what to do then."""
    if port is None:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                f"--port must be free on this machine, got {port}, which is in use. "
                f"{hint}"
            ) from error
