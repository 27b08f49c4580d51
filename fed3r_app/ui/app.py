"""The web application: one page, and the values it asks for. Nothing is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fed3r_app.files import plain
from fed3r_app.runs.report import format_bytes
from fed3r_app.ui import views
from fed3r_app.ui.classes import classes_view
from fed3r_app.ui.exposition import exposition
from fed3r_app.ui.pictures import Pictures
from fed3r_app.ui.results import Results, RunFiles

_PAGE = Path(__file__).parent / "page"
_FILES = {
    "/": "index.html",
    "/app.js": "app.js",
    "/charts.js": "charts.js",
    "/elements.js": "elements.js",
    "/style.css": "style.css",
    "/icon.svg": "icon.svg",
}
_MOST_ROWS = 500  # in one answer
_MOST_BYTES = 30_000_000  # of a picture
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(results: Results) -> Starlette:
    """Return the application for a folder of runs."""
    pictures = Pictures()

    def one_run(view: Callable[[RunFiles, Request], object]) -> Endpoint:
        """Return the endpoint of a view of a run; 204 where the page has it already."""

        def answer(request: Request) -> Response:
            run = results.open(request.path_params["run"])
            if request.query_params.get("seen") == run.version:
                return Response(status_code=204)
            return JSONResponse(plain(view(run, request)))

        return _in_thread(answer)

    def list_runs(request: Request) -> Response:
        view = views.list_view(results)
        if request.query_params.get("seen") == view["version"]:
            return Response(status_code=204)
        return JSONResponse(plain(view))

    def compare(request: Request) -> Response:
        names = [request.query_params.get(key, "") for key in ("one", "other")]
        runs = [results.open(name) for name in names]
        return JSONResponse(plain(views.compare_view(runs)))

    async def predict(request: Request) -> Response:
        run, body = results.open(request.path_params["run"]), await _body(request)
        best = await run_in_threadpool(pictures.classify, run, body)
        return JSONResponse({"classes": best})

    def metrics(request: Request) -> Response:
        text = exposition(results)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    run = "/api/runs/{run}"
    return Starlette(
        routes=[
            *(Route(path, _page(name)) for path, name in _FILES.items()),
            Route("/api/runs", _in_thread(list_runs)),
            Route(run, one_run(lambda run, _: views.run_view(run))),
            Route(f"{run}/clients", one_run(_clients)),
            Route(f"{run}/classes", one_run(lambda run, _: classes_view(run))),
            Route(f"{run}/predict", predict, methods=["POST"]),
            Route("/api/compare", _in_thread(compare)),
            Route("/metrics", _in_thread(metrics)),
        ],
        exception_handlers={
            HTTPException: _http_error,
            FileNotFoundError: _error(404),
            ValueError: _error(422),
            OSError: _error(500),
        },
    )


def _clients(run: RunFiles, request: Request) -> views.View:
    """Return the rows of the table of clients that are asked for."""
    asked = request.query_params
    offset, limit = (_count(asked.get(key, "0"), key) for key in ("offset", "limit"))
    return views.clients_view(
        run,
        asked.get("state", ""),
        asked.get("search", ""),
        offset,
        min(limit or _MOST_ROWS, _MOST_ROWS),
    )


async def _body(request: Request) -> bytes:
    """Return what is uploaded, if that is not too much."""
    body = bytearray()
    async for part in request.stream():  # to its end: browsers listen only then
        if len(body) <= _MOST_BYTES:
            body += part
    if len(body) > _MOST_BYTES:
        limit = format_bytes(_MOST_BYTES)
        raise HTTPException(413, f"A picture must have at most {limit}")
    return bytes(body)


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{name} must be a whole number >= 0, got {text!r}.")
    return int(text)


def _in_thread(answer: Callable[[Request], Response]) -> Endpoint:
    """Return an endpoint that keeps no other waiting while it reads files."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return endpoint


def _page(name: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return FileResponse(_PAGE / name)

    return endpoint


def _error(status: int) -> Callable[[Request, Exception], Response]:
    """Return what answers with the sentence of an error."""

    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": " ".join(str(error).split())}, status)

    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}."}, error.status_code)
