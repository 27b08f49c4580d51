"""A whole deployment on this machine for one run: ``fed3r demo``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fed3r_app.data.images import DataSet
from fed3r_app.data.packaged import load_digits, load_grocery
from fed3r_app.deployment.certificates import make_certificates
from fed3r_app.deployment.demo_data import write_demo_data
from fed3r_app.deployment.follow import run_app
from fed3r_app.deployment.local import LocalDeployment
from fed3r_app.deployment.nodes import list_nodes
from fed3r_app.deployment.processes import Value, toml
from fed3r_app.errors import RunError
from fed3r_app.words import plural

MOST_NODES = 10  # each of the digits is held by two nodes
_CONNECT_SECONDS = 120.0  # passed only if something is wrong


def run_demo(
    folder: Path,
    results: Path,
    app: Path,
    *,
    num_nodes: int,
    secure: bool,
    run_config: Sequence[str] = (),
) -> None:
    """Start a deployment in a folder, run the app on it, and stop everything.

    Parameters
    ----------
    folder : Path
        Where everything is written but the results: images, keys, state, logs, caches.
    results : Path
        The output-dir of the run.
    num_nodes : int
        SuperNodes, each with images of its own; 1 to ``MOST_NODES``.
    secure : bool
        TLS and node authentication, with keys made for it.
    run_config : sequence of str
        Settings of the run besides the demo's own, as for ``fed3r run``.
    """
    if not 1 <= num_nodes <= MOST_NODES:
        raise ValueError(f"--nodes must be from 1 to {MOST_NODES}, got {num_nodes}.")
    nodes = [f"node-{number}" for number in range(1, num_nodes + 1)]
    data, settings = _images()
    held = write_demo_data(folder / "images", nodes, data)
    for name, classes in held.items():
        print(f"{folder / 'images' / name}: {', '.join(classes)}")
    certificates = folder / "keys" if secure else None
    if certificates:
        make_certificates(certificates, ["127.0.0.1"], nodes)
    (folder / "tmp").mkdir()  # torch leaves something there
    environment = {
        "FED3R_CACHE_DIR": str(folder / "cache" / "server"),
        "TMPDIR": str(folder / "tmp"),
    }
    settings |= {"dataset": "local", "wait-for": num_nodes, "output-dir": str(results)}
    with LocalDeployment(folder / "home", environment, certificates) as deployment:
        _connect(deployment, folder, nodes)
        app = deployment.stage(app)
        run_app(deployment.superlink, app, [toml(settings), *run_config])


def _images() -> tuple[DataSet, dict[str, Value]]:
    """Return photographs if they are installed, else the digits, and their settings."""
    try:
        return load_grocery(), {}
    except FileNotFoundError as error:
        print(f"No photographs here, so digits: {error}")
        return load_digits(), {"image-size": 64}  # they are 8 x 8


def _connect(deployment: LocalDeployment, folder: Path, nodes: Sequence[str]) -> None:
    """Start the nodes, and wait until all are connected."""
    superlink = deployment.superlink
    tls = "TLS, only registered nodes" if superlink.root_certificates else "no TLS"
    print(f"SuperLink at {superlink.address} ({tls}), logs in {deployment.home}")
    for name in nodes:
        if superlink.root_certificates:
            deployment.register(name)
        cache = {"FED3R_CACHE_DIR": str(folder / "cache" / name)}
        place = str(folder / "images" / name)
        deployment.start_supernode(name, {"data-path": place, "client-id": name}, cache)
    deadline = time.monotonic() + _CONNECT_SECONDS
    while sum(node.is_online for node in list_nodes(superlink)) < len(nodes):
        ended = deployment.ended()
        if ended or time.monotonic() > deadline:
            name = next(iter(ended), nodes[0])
            log = deployment.log_file(name)
            raise RunError(f"{name} did not connect: {_last_line(log)}")
        time.sleep(0.5)
    print(f"{plural(len(nodes), 'node')} connected.", flush=True)


def _last_line(log: Path) -> str:
    """Return the last words of a log."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no log")
