"""`fed3r demo` and `fed3r demo-data`: a deployment on this machine, and its images."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fed3r_app.cli import arguments as args
from fed3r_app.data import LOCAL
from fed3r_app.errors import RunError
from fed3r_app.runs.directory import LATEST, RunDirectory, output_directory

commands = args.Group()


@commands.command(
    "demo",
    "start a deployment on this machine, run on it, and stop it",
    args.argument(
        "--nodes", "nodes, each with its own images", type=int, default=3, metavar="N"
    ),
    args.argument(
        "--tls", "encrypt, and let only registered nodes in", action="store_true"
    ),
    args.path(
        "--folder",
        "DIR",
        "a new folder for images, keys, state and logs, which stays there (default: a "
        "temporary one)",
    ),
    *args.SETTINGS,
    *(args.APP, args.VERBOSE),
)
def demo(options: argparse.Namespace) -> int:
    """Start a SuperLink, a SuperExec and nodes with different images, and a run.

    The images are photographs of fruit if the extra `grocery` is installed, else
    scikit-learn's digits. All processes are stopped at the end, and on Ctrl-C. The
    results are in $FED3R_OUTPUT_DIR, else results/.
    """
    from fed3r_app.console.progress import shown
    from fed3r_app.deployment.demo import run_demo
    from fed3r_app.deployment.process_group import orderly_exit
    from fed3r_app.deployment.processes import toml

    settings = args.run_settings(options, dataset=LOCAL)
    results = output_directory().resolve()
    with ExitStack() as stack:
        stack.enter_context(orderly_exit())
        if options.folder is None:
            made = tempfile.TemporaryDirectory(prefix="fed3r-demo-")
            folder = Path(stack.enter_context(made))
        else:
            folder = options.folder.absolute()
            folder.mkdir(parents=True)
        app = stack.enter_context(args.app_folder(options.app))
        stack.enter_context(shown(verbose=options.verbose))
        try:
            run_demo(
                folder,
                results,
                app,
                num_nodes=options.nodes,
                secure=options.tls,
                run_config=[toml(settings)],
            )
        except RunError as error:
            kept = (
                f"--folder {folder}" if options.folder else "--folder DIR, which keeps"
            )
            raise RunError(f"{error} See the logs ({kept} them).") from error
    run = RunDirectory((results / LATEST).resolve())
    print(f"Classify a photograph of yours: fed3r predict {run.path} photo.jpg")
    return 0


@commands.command(
    "demo-data",
    "write folders of images for a trial deployment",
    args.path("folder", "DIR"),
    args.repeated("--node", "name of a node; repeat it", required=True, default=None),
)
def write_demo(options: argparse.Namespace) -> int:
    """Write the digits as images, in a folder for each node; a part of `fed3r demo`.

    Nodes have partly different classes. Folders that hold images already are left
    alone.
    """
    from fed3r_app.deployment.demo_data import write_demo_data

    for name, classes in write_demo_data(options.folder, options.node).items():
        print(f"{options.folder / name}: digits {', '.join(classes)}")
    return 0
