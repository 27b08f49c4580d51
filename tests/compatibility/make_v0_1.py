# Run with version 0.1 (commit d8b437b) to make the fixtures anew:
#   cd CHECKOUT && PYTHONPATH=. OMP_NUM_THREADS=2 python …/make_v0_1.py [FOLDER]
"""Make the compatibility fixtures: runs, scores and numbers of version 0.1.

FOLDER, this file's by default, gets v0_1/ and numbers.json. Everything goes through
the inline engine; times, and the ledger's, are all that differs from one making to the
next. Numbers that differ between two processes are marked in numbers.json.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before torch is imported

import contextlib
import io
import json
import logging
import math
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from check_numbers import compute, defaults, differences, outcome
from fed3r_app.saved_model import load_model, saved_backbone
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from safetensors import safe_open
from simulation.inline_engine import InlineGrid, run_inline

from fed3r_app import client_app, server_app
from fed3r_app.cli import _features
from fed3r_app.cli import main as fed3r

COMMIT = "d8b437b"
Settings = dict[str, str | int | float | bool]
PIXELS: Settings = {"dataset": "digits-small", "backbone": "pixels", "image-size": 8}
# (clients, settings); `closed-form-lambda` loses two clients, see below.
RUNS: dict[str, tuple[int, Settings]] = {
    "closed-form-pixels": (5, {**PIXELS, "keep-contributions": True}),
    "closed-form-lambda": (
        6,
        {
            **{**PIXELS, "partition": "dirichlet", "alpha": 0.5},
            **{"ridge-lambda": 0.1, "fit-intercept": True, "max-retries": 0},
        },
    ),
    "class-means-pixels": (4, {**PIXELS, "method": "fedncm", "upload": "packed"}),
    "random-features-conv": (
        4,
        {
            **{"dataset": "digits-small", "backbone": "shufflenet_v2_x0_5"},
            **{"weights": "random", "image-size": 32},
            **{"method": "fed3r-rf", "rf-dim": 32, "keep-contributions": True},
        },
    ),
    "random-features-packaged": (
        4,
        {
            **{"dataset": "digits-small", "image-size": 32, "fit-intercept": True},
            **{"method": "fed3r-rf", "rf-dim": 32},
        },
    ),
    "fine-tuned-pixels": (
        4,
        {
            **{**PIXELS, "partition": "dirichlet", "alpha": 0.5, "finetune": "lp"},
            **{"optimizer": "fedavgm", "rounds": 2, "temperature": "auto"},
        },
    ),
    "secure-pixels": (6, {**PIXELS, "privacy": "secagg", "secagg-group": 3}),
}
LOST = (2, 4)  # partitions that fail in `closed-form-lambda`
FORGOTTEN = {
    "closed-form-pixels": "3",
    "random-features-conv": "1",
    "local-nodes": "clinic-b",
}
LOCAL: Settings = {
    **{"dataset": "local", "backbone": "pixels", "image-size": 8},
    **{"ridge-lambda": 0.5, "keep-contributions": True, "max-retries": 1},
}
# Classes of each node's images: none has all. The last one comes later.
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-10": ("yak", "yak", "bat", "owl"),
}
LATER = "clinic-10"
TESTED = "clinic-a"  # has test images, too


def main() -> None:
    """Make everything."""
    if "--numbers" in sys.argv:  # the second process, see `make_numbers`
        json.dump(compute(), sys.stdout)
        return
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve()
    logging.disable(logging.WARNING)
    folder = root / "v0_1"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FED3R_CACHE_DIR"] = cache
        make_images(folder / "images")
        make_runs(folder)
        scores = {run: use(folder, run) for run in (*RUNS, "local-nodes")}
        write_json(folder / "scores.json", scores)
    check_no_paths(folder)
    write_json(root / "numbers.json", make_numbers())


# The runs


def make_runs(folder: Path) -> None:
    """Make the directories of all runs, and what becomes of those that go on."""
    os.environ["FED3R_OUTPUT_DIR"] = str(folder)
    for name, (num_clients, settings) in RUNS.items():
        config = defaults() | settings | {"run-name": name}
        if name == "closed-form-lambda":
            with contextlib.suppress(RuntimeError):  # too few were counted
                run_inline(server_app.app, without(LOST), num_clients, config)
        else:
            run_inline(server_app.app, client_app.app, num_clients, config)
    make_nodes(folder / "images-of-nodes")
    federate_nodes(folder, [name for name in CLINICS if name != LATER])
    (folder / "latest").unlink()
    for path in folder.glob("*/curves.png"):
        path.unlink()
    with copied(folder, "closed-form-lambda") as run:
        go_on(run)
        keep(run, folder, "resumed")
    with copied(folder, "fine-tuned-pixels") as run:
        go_on(run, rounds=3)
        keep(run, folder, "resumed")
    with copied(folder, "local-nodes") as run:
        federate_nodes(folder, CLINICS, resume=True)
        keep(run, folder, "resumed")


def without(partitions: Sequence[int]) -> Callable[[Message, Context], Message]:
    """Return a ClientApp of which some partitions can't make their statistics."""

    def app(message: Message, context: Context) -> Message:
        lost = context.node_config["partition-id"] in partitions
        if lost and message.metadata.message_type == "train.statistics":
            raise RuntimeError("The disk is gone.")
        return client_app.app(message, context)

    return app


def go_on(run: Path, **changes: int) -> None:
    """Resume a run, with all clients there."""
    config = json.loads((run / "config.json").read_text())
    config |= {"resume": True, **changes}
    run_inline(server_app.app, client_app.app, RUNS[run.name][0], config)


class Nodes(InlineGrid):
    """Nodes with image folders of their own."""

    def __init__(self, config: Settings, folder: Path, clients: Sequence[str]) -> None:
        super().__init__(client_app.app, 0, config)
        for number, client in enumerate(clients):
            node, own = 101 + 7 * number, str(folder / client)
            self._contexts[node] = Context(
                self.run_id,
                node,
                {"data-path": own, "client-id": client},
                RecordDict(),
                dict(config),
            )


def make_nodes(folder: Path) -> None:
    """Draw the images of the nodes, 8 x 8 grey values each."""
    for client, class_names in CLINICS.items():
        random = np.random.default_rng(list(client.encode()))
        parts = ("train", "test") if client == TESTED else ("",)
        for part in parts:
            for number, name in enumerate(class_names):
                grey = random.integers(256, size=(8, 8), dtype=np.uint8)
                path = folder / client / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(grey).save(path)


def federate_nodes(folder: Path, clients: Sequence[str], resume: bool = False) -> None:
    """Run a federation of nodes that have images of their own."""
    config = defaults() | LOCAL | {"run-name": "local-nodes", "resume": resume}
    grid = Nodes(config, folder / "images-of-nodes", list(clients))
    TaskIdentity.run_id, TaskIdentity.node_id = grid.run_id, 1
    TaskIdentity.task_id = grid.run_id
    server_app.app(grid, Context(grid.run_id, 1, {}, RecordDict(), config))


@contextlib.contextmanager
def copied(folder: Path, name: str) -> Iterator[Path]:
    """Copy a run, and let that be the one that is gone on with meanwhile."""
    before = os.environ["FED3R_OUTPUT_DIR"]
    with tempfile.TemporaryDirectory() as copies:
        shutil.copytree(folder / name, Path(copies) / name)
        os.environ["FED3R_OUTPUT_DIR"] = copies
        yield Path(copies) / name
    os.environ["FED3R_OUTPUT_DIR"] = before


def keep(run: Path, folder: Path, what: str) -> None:
    """Keep the model and the outcome of a changed copy of a run."""
    stem = f"{run.name}-{what}"
    model = folder / "expected" / f"expected-{stem}.safetensors"
    shutil.copyfile(run / "model.safetensors", model)
    write_json(folder / "expected" / f"expected-{stem}.json", outcome(run))


# What the commands say


def make_images(folder: Path) -> None:
    """Draw three images: a plain one, one to be turned, one smaller than the input."""
    folder.mkdir()
    x, y = np.meshgrid(np.linspace(0, 1, 80), np.linspace(0, 1, 60))
    plain = np.stack([x, y, (x + y) / 2], axis=-1)
    Image.fromarray((255 * plain).astype(np.uint8)).save(folder / "plain.jpg")
    turned = np.stack([x * y, 1 - x, y**2], axis=-1)
    image = Image.fromarray((255 * turned).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # orientation: to be shown turned by 90 degrees
    image.save(folder / "exif-rotated.jpg", exif=exif)
    small = np.random.default_rng(0).integers(256, size=(5, 5, 3), dtype=np.uint8)
    Image.fromarray(small).save(folder / "small.png")


def use(folder: Path, name: str) -> dict[str, Any]:
    """Return scores of the three images, and what `fed3r` says of a run."""
    model = load_model(folder / name / "model.safetensors")
    backbone = saved_backbone(model)
    names = ("plain.jpg", "exif-rotated.jpg", "small.png")
    images = {image: folder / "images" / image for image in names}
    scores = {
        image: model.scores(_features(backbone, path))[0].tolist()
        for image, path in images.items()
    }
    paths = list(map(str, images.values()))
    said: dict[str, Any] = {
        "class_names": model.class_names,
        "scores": {
            image: [value if math.isfinite(value) else None for value in values]
            for image, values in scores.items()
        },
        "predict": said_by(folder, "predict", str(folder / name), *paths),
        "show": said_by(folder, "show", str(folder / name)),
    }
    with copied(folder, name) as run:
        said["audit"] = said_by(run.parent, "audit", str(run))
    commands = {"solve": ("solve",), "solve-1": ("solve", "--ridge-lambda", "1")}
    if name in FORGOTTEN:
        commands["forget"] = ("forget", FORGOTTEN[name])
        said["forgotten_client"] = FORGOTTEN[name]
    for what, (command, *options) in commands.items():
        with copied(folder, name) as run:
            said[what] = said_by(run.parent, command, str(run), *options)
            if said[what]["exit_code"] == 0:
                keep(run, folder, what)
                said[what]["audit"] = said_by(run.parent, "audit", str(run))
    return said


def said_by(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a command; return its exit code and what it printed, without the folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = fed3r(arguments)
    prefix = f"{folder}/"
    return {
        "exit_code": code,
        "stdout": out.getvalue().replace(prefix, ""),
        "stderr": err.getvalue().replace(prefix, ""),
    }


# The numbers


def make_numbers() -> dict[str, Any]:
    """Return the numbers of all federations, compared with another process's."""
    numbers = compute()
    again = subprocess.run(
        [sys.executable, __file__, "--numbers"],
        stdout=subprocess.PIPE,
        check=True,
    )
    packages = ("flwr", "numpy", "pillow", "scikit-learn", "torch", "torchvision")
    return {
        "version": f"0.1.0, commit {COMMIT}",
        "made_with": {
            "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
            "python": platform.python_version(),
            "processor": platform.machine(),
            **{name: metadata.version(name) for name in packages},
        },
        "differs_between_processes": list(
            differences(numbers, json.loads(again.stdout))
        ),
        "one_thread": one_thread(numbers),
        "defaults": defaults(),
        **numbers,
    }


def one_thread(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Return how far W is from that of a single thread, in W_spread's entries."""
    again = subprocess.run(
        [sys.executable, __file__, "--numbers"],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    other, told = json.loads(again.stdout), {}
    for name, old in numbers["federations"].items():
        new = other["federations"][name]
        pairs = zip(old["W_spread"], new["W_spread"], strict=True)
        most = max(abs(then - now) for then, now in pairs)
        scale = max(map(abs, old["W_spread"]))
        same = old["W_sha256"] == new["W_sha256"]
        told[name] = "the same W" if same else f"W differs by {most / scale:.1g} of it"
    return told


# Files


def write_json(path: Path, values: object) -> None:
    """Write a JSON file that people can read."""
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", "utf-8")


def check_no_paths(folder: Path) -> None:
    """Raise if any file names a place on this machine."""
    places = (str(folder.parent), tempfile.gettempdir(), str(Path.home()), os.getcwd())
    for path in filter(Path.is_file, folder.rglob("*")):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                text = json.dumps(file.metadata())
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text("utf-8")
        else:
            continue
        for place in places:
            if place in text:
                raise ValueError(f"{path} must not name {place}.")


if __name__ == "__main__":
    main()
