"""The commands of `fed3r` for deployments: certificates, check, register, run, app."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fed3r_app.cli import arguments as args
from fed3r_app.cli.ports import check_port, port
from fed3r_app.errors import SettingsError

commands = args.Group()
_LOCAL = "127.0.0.1"


@commands.command(
    "certificates",
    "make, renew or show certificates and keys of a deployment",
    args.path("folder", "DIR", "where to write them; made if needed"),
    args.repeated(
        "--host",
        "name or address of the SuperLink, beside localhost, 127.0.0.1 and superlink; "
        "may be repeated",
    ),
    args.repeated("--node", "name of a node that gets a key; may be repeated"),
    args.argument(
        "--renew",
        "sign a new certificate of the SuperLink, by the same authority and for the "
        "same hosts and those named; keys of nodes stay",
        action="store_true",
    ),
    args.argument(
        "--keep",
        "keep certificates that are there, and make only missing keys of nodes",
        action="store_true",
    ),
)
def make_trial(options: argparse.Namespace) -> int:
    """Make a certificate authority, a server certificate and a key for each node.

    The SuperLink's certificate is valid for 90 days, its authority for five years.
    Nothing that is there is overwritten, unless --renew asks for it. All keys in one
    place are for a trial: in production, each node makes its own.
    """
    from fed3r_app.deployment import certificates as made

    folder, nodes = options.folder, options.node
    if options.keep and (folder / made.CA_CERTIFICATE).exists():
        made.check_valid(folder)
        nodes = made.make_missing_keys(folder, nodes)
        print(f"{folder}: holds certificates, kept")
    elif options.renew:
        is_new = made.renew_certificates(folder, options.host)
        nodes = made.make_missing_keys(folder, nodes)
        print("Renewed: restart the SuperLink. Nodes need nothing new", end="")
        print(f" but {made.CA_CERTIFICATE}, which would expire." if is_new else ".")
    else:
        hosts = list(dict.fromkeys([*made.DEFAULT_HOSTS, *options.host]))
        made.make_certificates(folder, hosts, nodes)
    print(*made.describe(folder), sep="\n")
    for name in nodes:
        place = folder / made.NODES / name
        print(f"{place}: private key of {name}; {name}.pub to register")
    return 0


@commands.command(
    "superlink",
    "start a SuperLink and what runs its ServerApps",
    args.path("--database", "FILE", "where it keeps its state", required=True),
    args.path(
        "--certificates",
        "DIR",
        "as `fed3r certificates` makes it: TLS, and registered nodes only; without it "
        "only this machine may connect",
    ),
    args.argument(
        "--host", "where to listen (default: 127.0.0.1; 0.0.0.0: all)", default=_LOCAL
    ),
    args.argument("--port", "default: 8000", type=port, default=8000),
)
def serve(options: argparse.Namespace) -> int:
    """Run a SuperLink and its SuperExec until Ctrl-C or SIGTERM.

    One that dies is started again, and runs go on. Results are written to
    $FED3R_OUTPUT_DIR, else to results/ here; all files are for their owner only.
    """
    from fed3r_app.deployment.server import Server

    check_port(options.port, "Is a SuperLink running already?")
    Server(
        options.host, options.port, options.database.absolute(), options.certificates
    ).serve()
    return 0


@commands.command(
    "check",
    "check whether a SuperLink can be reached, and print why not",
    *args.superlink(),
    args.argument(
        "--port", "also check that this port is free for a SuperNode here", type=port
    ),
)
def check(options: argparse.Namespace) -> int:
    """Connect to a SuperLink as a node would, and report what is wrong."""
    superlink = args.connection(options)
    superlink.check()
    check_port(options.port)
    print(f"The SuperLink at {superlink.address} is up.")
    return 0


@commands.command(
    "register",
    "register the public keys of nodes, so that they may connect",
    *args.superlink(),
    args.path("keys", "KEY.pub", nargs="+"),
    args.argument(
        "--name", "name of the node, its --client-id (default: that of KEY.pub's file)"
    ),
)
def register(options: argparse.Namespace) -> int:
    """Register nodes with a SuperLink that authenticates them.

    Runs know a node by the name it is registered under: its --client-id must equal it.
    """
    from fed3r_app.deployment.nodes import register_node

    superlink, name = args.connection(options), options.name
    if name and len(options.keys) > 1:
        raise ValueError(f"--name must go with one key, got {len(options.keys)}.")
    superlink.check()
    for key in options.keys:
        is_new = register_node(superlink, key, name or key.stem)
        done = "registered" if is_new else "was registered before"
        print(f"{key}: {done} as {name or key.stem}")
    return 0


@commands.command(
    "run",
    "start a run on a SuperLink, follow it, and print its result",
    *(*args.superlink(), *args.SETTINGS),
    args.argument(
        "--follow",
        "start none, but show one that is there, from its beginning",
        metavar="RUN",
        type=int,
    ),
    *(args.APP, args.VERBOSE),
)
def run(options: argparse.Namespace) -> int:
    """Run the app as `flwr run --stream` does; show its log and its summary.

    The exit code is 0 only if the run completed. The run does not depend on this
    command: Ctrl-C ends what is shown here, and --follow shows it again.
    """
    from fed3r_app.deployment.follow import Follower, run_app
    from fed3r_app.deployment.nodes import naming_absent
    from fed3r_app.deployment.processes import write_run_config

    superlink = args.connection(options)
    settings = args.run_settings(options)
    if options.follow is not None and settings:
        raise SettingsError(
            f"--follow must go without settings, got {next(iter(settings))}: the run "
            "has its own."
        )
    with args.shown_run(options), naming_absent(superlink):
        if options.follow is not None:
            superlink.check()
            Follower(superlink, options.follow).follow()
            return 0
        with (
            tempfile.TemporaryDirectory() as folder,
            args.app_folder(options.app) as app,
        ):
            run_app(superlink, app, [write_run_config(Path(folder), settings)])
    return 0


@commands.command(
    "app",
    "write the app's folder, for `flwr run` and `flwr build`",
    args.path("folder", "DIR", "a new folder"),
)
def write_app(options: argparse.Namespace) -> int:
    """Write the installed app as a folder that Flower can bundle."""
    from fed3r_app.deployment.processes import INSTALLED_APP, stage_app

    if options.folder.exists():
        raise FileExistsError(f"DIR must be a new folder, got {options.folder}.")
    print(f"{stage_app(INSTALLED_APP, options.folder)}: the app, for flwr run")
    return 0
