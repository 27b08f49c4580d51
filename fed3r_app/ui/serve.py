"""Serves the page on an address of this machine until it is stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from fed3r_app.ui.app import make_app
from fed3r_app.ui.guard import Guard, is_loopback
from fed3r_app.ui.results import Results

_TOKEN_BYTES = 18
_CLOSING_SECONDS = 1


def serve(folder: Path, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the runs in a folder; ``announce`` gets the URL once it answers.

    Port 0 is any free one. An address that other machines reach has a token in its URL.
    """
    app, token = guarded_app(folder, host)
    with _listen(host, port) as listener:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # URLs hold the token
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
        announce(_url(host, listener.getsockname()[1], token))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def guarded_app(folder: Path, host: str) -> tuple[Guard, str]:
    """Return the application for an address, and the token it asks for, "" for none."""
    token = "" if is_loopback(host) else secrets.token_urlsafe(_TOKEN_BYTES)
    return Guard(make_app(Results(folder)), host, token), token


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections from now on."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(
            f"--host and --port must be free on this machine, got {host} and {port} "
            f"({reason})."
        ) from error


def _url(host: str, port: int, token: str) -> str:
    """Return the address to open; that of all interfaces is shown as this machine's."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
