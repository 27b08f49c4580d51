"""`fed3r ui`: runs in a web browser."""

from __future__ import annotations

import argparse

from fed3r_app.cli import arguments as args
from fed3r_app.cli.ports import port_or_any
from fed3r_app.runs.directory import output_directory

commands = args.Group()


@commands.command(
    "ui",
    "look at runs in a web browser",
    args.path(
        "results",
        "RESULTS",
        "folder of runs (default: $FED3R_OUTPUT_DIR, else results/)",
        nargs="?",
    ),
    args.argument(
        "--host",
        "address to listen on (default: 127.0.0.1, which only this machine reaches; "
        "with any other, the URL has a token)",
        default="127.0.0.1",
    ),
    args.argument(
        "--port",
        "port to listen on (default: 0, a free one)",
        metavar="PORT",
        type=port_or_any,
        default=0,
    ),
)
def ui(options: argparse.Namespace) -> int:
    """Serve a page with all runs, those under way too, until Ctrl-C.

    Nothing in RESULTS is changed, and no request leaves this machine.
    """
    from fed3r_app.ui.serve import serve

    folder = options.results or output_directory()
    serve(
        folder,
        options.host,
        options.port,
        lambda url: print(f"Runs in {folder}\nOpen    {url}", flush=True),
    )
    return 0
