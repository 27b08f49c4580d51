"""`fed3r node`: a node with images of its own; `fed3r clients`: who is connected."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fed3r_app.cli import arguments as args
from fed3r_app.cli.ports import check_port, port
from fed3r_app.data import LOCAL
from fed3r_app.runs.directory import output_directory
from fed3r_app.runs.last_heard import last_heard
from fed3r_app.runs.report import format_bytes, format_seconds
from fed3r_app.words import first_names, plural

if TYPE_CHECKING:
    from clients.node_check import NodeCheck
    from fed3r_app.deployment.supernode import SuperNode

commands = args.Group()
_MOST_CLASSES = 20


@commands.command(
    "node",
    "start a node with images of its own, or check that it could take part",
    *args.superlink(),
    args.path("--data", "DIR", "folder of its images, or a table", required=True),
    args.argument(
        "--client-id",
        "name under which it takes part; it belongs to the images, and stays",
        metavar="NAME",
        required=True,
    ),
    args.path("--key", "KEY", "its private key, where nodes are authenticated"),
    args.argument(
        "--port", "port of this machine, for itself", type=port, default=9094
    ),
    args.argument(
        "--backbone",
        "a network of its own, python:MODULE:FUNCTION, which no server can choose",
        metavar="NAME",
        default="",
    ),
    args.argument(
        "--weights", "its own file or folder of weights", metavar="PATH", default=""
    ),
    args.argument(
        "--check",
        "read the images, run a batch, connect, print what was found; send nothing",
        action="store_true",
    ),
    *args.SETTINGS,
)
def node(options: argparse.Namespace) -> int:
    """Start Flower's SuperNode with the right options, and stop it with this command.

    Killed and started again, an authenticated node is refused by Flower for about a
    minute; this command waits. Settings of a run are for --check only.
    """
    from fed3r_app.deployment.process_group import orderly_exit
    from fed3r_app.deployment.supernode import SuperNode

    superlink, data = args.connection(options), options.data
    own = {"backbone": options.backbone, "weights": options.weights}
    named = (data, options.client_id, options.key, options.port)
    started = SuperNode(superlink, *named, **own)
    if not data.expanduser().exists():
        raise FileNotFoundError(f"--data must be a folder or table, got {data}.")
    if not options.client_id.strip():
        raise ValueError("--client-id must be a name, got an empty one.")
    check_port(options.port)
    if options.check:
        return _check(started, options)
    started.check()
    with orderly_exit():
        return started.run()


@commands.command(
    "clients",
    "list the nodes of a SuperLink: who is online, who is not, since when",
    *args.superlink(),
)
def clients(options: argparse.Namespace) -> int:
    """Print a line for each node that is registered or connected.

    When each last replied, and its version of fed3r, are those of the runs in
    $FED3R_OUTPUT_DIR, else results/.
    """
    from fed3r_app.deployment.nodes import UNREGISTERED, list_nodes

    superlink = args.connection(options)
    superlink.check()
    nodes = [node for node in list_nodes(superlink) if node.status != UNREGISTERED]
    heard = last_heard(output_directory())
    rows = [("name", "state", "last reply", "fed3r")]
    for node in sorted(nodes, key=lambda node: node.name):
        last = heard.get(node.name)
        time = f"{last.time.astimezone():%Y-%m-%d %H:%M}" if last else "-"
        version = (last and last.version) or "-"
        rows.append((node.name or "(no name)", node.state, time, version))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0


def _check(node: SuperNode, options: argparse.Namespace) -> int:
    """Print what a node has and whether it could connect; return the exit code."""
    from clients.node_check import check_node

    settings = args.run_settings(options, dataset=LOCAL)
    print("Reading the images …", flush=True)
    found = check_node(node.node_config, settings)
    for label, text in _rows(found):
        print(f"{label:<12}{text}")
    failed = args.fail(ValueError(found.problem)) if found.problem else 0
    node.superlink.check()
    known = node.check()
    key = f", which knows the key as {known.name or 'nameless'}" if known else ""
    print(f"{'connected':<12}to the SuperLink at {node.superlink.address}{key}")
    print("Nothing was sent.")
    return failed


def _rows(found: NodeCheck) -> list[tuple[str, str]]:
    """Return what was found as labels and texts."""
    counts = [f"{name} {number}" for name, number in found.classes.items()]
    bad = f"{plural(found.num_unreadable, 'file')}, listed above: they are skipped"
    time = format_seconds(found.seconds)
    return [
        ("images", f"{found.num_images} to train on, {found.num_test_images} to test"),
        ("classes", f"{len(counts)}: {first_names(counts, _MOST_CLASSES)}"),
        ("unreadable", bad if found.num_unreadable else "none"),
        ("time", f"about {time} for the first run ({found.backbone}), then seconds"),
        ("upload", f"{format_bytes(found.upload_bytes)} at most"),
    ]
