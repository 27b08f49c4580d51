"""The commands of `fed3r` for deployments: certificates, check, register, run, demo."""

from __future__ import annotations

import argparse
import errno
import socket
from collections.abc import Sequence
from pathlib import Path

from fed3r_app.runs.directory import LATEST, RunDirectory, output_directory
from fed3r_app.runs.report import summary_table

Commands = argparse._SubParsersAction  # what add_subparsers() returns


NAMES = ("certificates", "check", "register", "run", "demo-data")


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    _add_certificates(commands)
    _add_check(commands)
    _add_register(commands)
    _add_run(commands)
    _add_demo_data(commands)


def call(options: argparse.Namespace) -> int:
    """Run one of the commands; return its exit code."""
    if options.command == "certificates":
        return make_trial(options.folder, options.host, options.node, options.keep)
    if options.command == "demo-data":
        return write_demo(options.folder, options.node)
    from fed3r_app.deployment.superlink import SuperLink

    superlink = SuperLink(options.address, options.root_certificates)
    if options.command == "check":
        superlink.check()
        check_port(options.port)
        print(f"The SuperLink at {superlink.address} is up.")
    elif options.command == "register":
        superlink.check()
        for key in options.keys:
            is_new = superlink.register(key)
            print(f"{key}: {'registered' if is_new else 'was registered before'}")
    else:
        before = _latest_summary()
        superlink.run(options.app, options.run_config)
        _show_newer_than(before)
    return 0


def make_trial(
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], keep: bool = False
) -> int:
    """Write certificates and node keys for a trial, and say what is where."""
    from fed3r_app.deployment.certificates import (
        CA_CERTIFICATE,
        DEFAULT_HOSTS,
        NODES,
        keep_certificates,
        make_certificates,
    )

    if keep and (folder / CA_CERTIFICATE).exists():
        nodes = keep_certificates(folder, nodes)
        print(f"{folder}: holds certificates, kept")
    else:
        make_certificates(folder, list(dict.fromkeys([*DEFAULT_HOSTS, *hosts])), nodes)
        print(
            f"{folder}: ca.crt for everybody, server.crt and server.key for the "
            "SuperLink"
        )
    for name in nodes:
        print(f"{folder / NODES / name}: private key of {name}; {name}.pub to register")
    return 0


def write_demo(folder: Path, nodes: Sequence[str]) -> int:
    """Write the digits as the images of some nodes, and say who has what."""
    from fed3r_app.deployment.demo_data import write_demo_data

    for name, classes in write_demo_data(folder, nodes).items():
        print(f"{folder / name}: digits {', '.join(classes)}")
    return 0


def check_port(port: int | None) -> None:
    """Raise an OSError if a port of this machine is taken."""
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
                "Give each SuperNode its own --port."
            ) from error


def _latest_run() -> RunDirectory:
    return RunDirectory((output_directory() / LATEST).resolve())


def _latest_summary() -> tuple[Path, int]:
    """Return where the last run's summary is, and when it was written; 0: never."""
    path = _latest_run().summary_path
    return path, path.stat().st_mtime_ns if path.is_file() else 0


def _show_newer_than(before: tuple[Path, int]) -> None:
    """Print the summary of the run that has just ended, where its files are at hand."""
    run = _latest_run()
    if _latest_summary() == before or not run.summary_path.is_file():
        print("The results are where the ServerApp runs: its output-dir.")
        return
    print(summary_table(run.read_summary()))
    print(f"\nRun      {run.path}")


def _add_certificates(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "certificates",
        help="make certificates and keys for a trial of a deployment",
        description="Make a certificate authority, a certificate for the SuperLink and "
        "a key for each node, valid for 30 days. For a trial: all keys in one place.",
    )
    command.add_argument(
        "folder", metavar="DIR", type=Path, help="where to write them; made if needed"
    )
    command.add_argument(
        "--host",
        action="append",
        default=[],
        help="name or address of the SuperLink, beside localhost, 127.0.0.1 and "
        "superlink; may be repeated",
    )
    command.add_argument(
        "--node",
        action="append",
        default=[],
        help="name of a node that gets a key; may be repeated",
    )
    command.add_argument(
        "--keep",
        action="store_true",
        help="keep certificates that are there, and make only missing keys of nodes",
    )


def _add_check(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "check",
        help="say whether a SuperLink can be reached, and if not, why",
        description="Connect to a SuperLink as a node would, and say what is wrong.",
    )
    _add_superlink(command)
    command.add_argument(
        "--port",
        type=_port,
        help="also check that this port is free for a SuperNode here",
    )


def _port(text: str) -> int:
    """Return the number in an option that must be a port."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, got {text!r}")
    return int(text)


def _add_register(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "register",
        help="let nodes connect, by their public keys",
        description="Register nodes with a SuperLink that authenticates them.",
    )
    _add_superlink(command)
    command.add_argument("keys", metavar="KEY.pub", type=Path, nargs="+")


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "run",
        help="start a run on a SuperLink, follow it, and print its result",
        description="`flwr run --stream`, with an exit code that is 0 only if the run "
        "completed, and its summary where the results can be seen from here.",
    )
    _add_superlink(command)
    command.add_argument(
        "--run-config",
        metavar="SETTINGS",
        action="append",
        default=[],
        help="as in `flwr run`: 'key=value key2=\"text\"', or a TOML file",
    )
    command.add_argument(
        "--app", type=Path, default=Path(), help="folder of the app (default: here)"
    )


def _add_demo_data(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "demo-data",
        help="write folders of images for a trial of nodes with their own data",
        description="Write the digits as images, in a folder for each node; nodes have "
        "partly different classes. Folders that hold images already are left alone.",
    )
    command.add_argument("folder", metavar="DIR", type=Path)
    command.add_argument(
        "--node", action="append", required=True, help="name of a node; repeat it"
    )


def _add_superlink(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "address", metavar="HOST:PORT", help="where the SuperLink listens"
    )
    command.add_argument(
        "--root-certificates",
        metavar="CA.CRT",
        type=Path,
        help="the authority that signed its certificate; without it: no TLS",
    )
