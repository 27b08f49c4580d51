"""Who may ask for what: checks ahead of every answer, and headers on each.

A page from elsewhere must not read runs through the browser of whoever looks at them:
not from its own origin, and not under a name of its own that leads here (DNS
rebinding). Browsers are told to load nothing from anywhere else.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from hashlib import sha256

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise OSError(
            f"--host must be a name or an address of this machine, got {host!r} "
            f"({error.strerror or error})."
        ) from error
    return all(ipaddress.ip_address(each).is_loopback for each in found)


class Guard:
    """Lets through what a browser on the page asks for, and nothing else.

    Parameters
    ----------
    app : ASGIApp
        What is guarded.
    host : str
        The name or address that was bound.
    token : str
        What has to be in the first URL, or in an Authorization header; "" for an
        address that only this machine reaches.
    """

    def __init__(self, app: ASGIApp, host: str, token: str = "") -> None:
        self._app = app
        self._names = {host.lower(), *_LOCAL_NAMES}
        self._token = token
        if token:
            self._names.add(socket.gethostname().lower())
        # Cookies don't tell ports apart: two pages on a machine have two names.
        self._cookie = f"fed3r-{sha256(token.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = self._answer(Request(scope)) or self._app
        await response(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return a refusal, or where to go with a token; None to let it through."""
        refusal = self._foreign(request)
        if refusal:
            return JSONResponse({"error": refusal}, 403)
        if not self._token:
            return None
        if self._matches(request.query_params.get("token", "")):
            if request.url.path != "/":
                return None
            # Out of the address bar and the history; the cookie goes to no other site.
            response = RedirectResponse("/", 303)
            response.set_cookie(
                self._cookie, self._token, httponly=True, samesite="strict"
            )
            return response
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = request.cookies.get(self._cookie, "")
        if self._matches(known) or (scheme == "Bearer" and self._matches(given)):
            return None
        sentence = "The address must end with the token that `fed3r ui` printed."
        return JSONResponse({"error": sentence}, 401)

    def _matches(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())

    def _foreign(self, request: Request) -> str | None:
        """Return why a request comes from elsewhere; None if it does not."""
        host = request.headers.get("host", "")
        name = _name_of(host)
        if not (name in self._names or (self._token and _is_address(name))):
            return f"The Host header must name this machine, got {host!r}."
        origin = request.headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return f"The Origin header must be that of this page, got {origin!r}."
        return None


def _name_of(host: str) -> str:
    """Return a Host header without its port and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    """Return whether a name is an address, which nobody can have lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
