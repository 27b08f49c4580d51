"""The command `fed3r simulate`: a run with simulated clients, on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.cli import arguments as args
from fed3r_app.errors import before_start
from fed3r_app.runs.directory import RunDirectory

if TYPE_CHECKING:
    from fed3r_app.config import Config

commands = args.Group()
INLINE, RAY = "inline", "ray"


@commands.command(
    "simulate",
    "run with simulated clients on this machine",
    *args.SETTINGS,
    args.argument(
        "--clients",
        "number of clients (default: that of the run whose config.json is given; the "
        "data set's own with partition=natural; one for each class with "
        "partition=by-class; else 10)",
        metavar="K",
        type=int,
    ),
    args.argument(
        "--engine",
        "inline: one client after another in this process, quick to start (default); "
        "ray: `flwr run` on a SuperLink of its own, several clients at a time",
        choices=(INLINE, RAY),
        default=INLINE,
    ),
    args.argument(
        "--cpus-per-client",
        "processors that a client occupies (ray; default: 1)",
        metavar="N",
        type=int,
    ),
    args.argument(
        "--gpus-per-client",
        "share of a GPU that a client occupies (ray; default: 0)",
        metavar="X",
        type=float,
    ),
    args.VERBOSE,
)
def simulate(options: argparse.Namespace) -> int:
    """Run the app with simulated clients, and write the results to a folder.

    Settings are key=value, with or without quotation marks and spaces, such as
    method=fedncm partition=dirichlet alpha=0.1. Everything is checked before anything
    is started. The exit code is 0 only if the run completed, 2 for settings that can't
    be right, 1 for a run that failed.
    """
    from fed3r_app.deployment.process_group import PATIENT_THREADS, orderly_exit

    os.environ |= {**PATIENT_THREADS, **os.environ}  # before torch is loaded
    with before_start():
        config, clients, resources = _checked(options)
    reserved = RunDirectory.reserved(config.output_dir, config.run_name)
    with orderly_exit(), reserved as run:
        place = {"output-dir": str(run.path.parent), "run-name": run.path.name}
        settings = config.to_run_config() | place
        with args.shown_run(options):
            if options.engine == INLINE:
                _run_inline(clients, settings)
            else:
                _run_on_ray(clients, settings, resources)
    return 0


def _checked(options: argparse.Namespace) -> tuple[Config, int, dict[str, float]]:
    """Return the settings, the number of clients and what each client occupies."""
    from fed3r_app.config import Config
    from fed3r_app.server.preflight import check_simulation

    resources = _resources(options)
    config = Config.from_run_config(args.run_settings(options))
    clients = options.clients
    if clients is None and options.config:
        clients = _earlier_clients(options.config)
    return config, check_simulation(config, clients), resources


def _resources(options: argparse.Namespace) -> dict[str, float]:
    """Return what a client occupies, in the words of Flower's federation config."""
    found = {}
    for name, least in (("cpus", 1), ("gpus", 0)):
        option, number = f"--{name}-per-client", getattr(options, f"{name}_per_client")
        if number is None:
            continue
        if options.engine != RAY:
            raise ValueError(f"{option} must go with --engine ray, got {number:g}.")
        if not number >= least:
            raise ValueError(f"{option} must be >= {least}, got {number:g}.")
        found[f"client-resources-num-{name}"] = number
    return found


def _earlier_clients(config_file: Path) -> int | None:
    """Return how many clients the run of a config.json had, if it has ended."""
    run = RunDirectory(config_file.parent)
    if config_file.name != run.config_path.name or not run.summary_path.is_file():
        return None
    clients = run.read_summary().get("clients")
    return clients if isinstance(clients, int) else None


def _run_inline(clients: int, settings: args.Settings) -> None:
    from fed3r_app.client_app import app as client_app
    from fed3r_app.server_app import app as server_app
    from simulation.engines.inline import run_inline

    run_inline(server_app, client_app, clients, settings)


def _run_on_ray(
    clients: int, settings: args.Settings, resources: dict[str, float]
) -> None:
    from fed3r_app.deployment.processes import INSTALLED_APP
    from simulation.engines.superlink import private_superlink

    with private_superlink(Path(".flwr")) as superlink:
        superlink.simulate(INSTALLED_APP, settings, clients, resources)
