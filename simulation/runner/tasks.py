"""What a worker process is asked to do. Everything heavy is loaded there only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.config import Config
from fed3r_app.data import dataset_traits
from fed3r_app.deployment.processes import INSTALLED_APP
from fed3r_app.files.yaml_file import Scalar
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store, run_name

if TYPE_CHECKING:
    from simulation.engines.superlink import EphemeralSuperLink

FLOWER = "flower"
Report = Callable[[int, int], None]
# What the features of an image depend on, and where they are computed.
_FEATURE_KEYS = (
    *("dataset", "data-path", "test-share"),
    *("backbone", "weights", "image-size", "intensity"),
    *("extract-dtype", "device"),
)
_CHUNK = 4096  # images between two reports of progress


class TaskError(RuntimeError):
    """A task that failed; the message says why."""


@dataclass(frozen=True, eq=False)
class Task:
    """Something to do, with a name and a file for what it prints.

    ``execute`` is called in a worker, with what the worker closes when it ends and
    with what reports progress; it raises where it fails. ``run`` is the run that the
    task makes, if it makes one.
    """

    title: str
    log: Path
    execute: Callable[[ExitStack, Report], None]
    run: ExperimentRun | None = None


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_task(run: ExperimentRun, store: Store, engine: str) -> Task:
    """Return the task of one run of the app."""
    log = store.log(run)
    return Task(run.title, log, partial(_run_app, run, store, engine), run)


def _run_app(
    run: ExperimentRun, store: Store, engine: str, resources: ExitStack, _: Report
) -> None:
    config: dict[str, Scalar] = {
        **run.config,
        "output-dir": str(store.runs),
        "run-name": run_name(run),
        "resume": store.prepare(run),
    }
    if engine == FLOWER:
        superlink = _superlink(resources, store.root / ".flwr")
        superlink.simulate(INSTALLED_APP, config, run.clients)
    else:
        from fed3r_app.client_app import app as client_app
        from fed3r_app.server_app import app as server_app
        from simulation.engines.inline import run_inline

        run_inline(server_app, client_app, run.clients, config)


@cache
def _superlink(resources: ExitStack, home: Path) -> EphemeralSuperLink:
    """Return a SuperLink that stays up for all runs of this worker."""
    from simulation.engines.superlink import EphemeralSuperLink

    return resources.enter_context(EphemeralSuperLink(home))


def features_wanted(runs: Iterable[ExperimentRun], log_folder: Path) -> list[Task]:
    """Return one task for each set of features that runs read from the cache."""
    wanted: dict[tuple[Scalar, ...], Task] = {}
    for run in runs:
        config = Config.from_run_config(run.config)
        on_images = config.method == "none" and config.finetune != "lp"
        if on_images or dataset_traits(config.dataset).gives_features:
            continue
        size = f" at {config.input_size} px" if config.input_size else ""
        title = f"features of {config.dataset}{size}"
        log = log_folder / f"features-{config.dataset}.log"
        key = tuple(run.config[key] for key in _FEATURE_KEYS)
        wanted.setdefault(key, Task(title, log, partial(_extract, config)))
    return list(wanted.values())


def _extract(config: Config, _: ExitStack, report: Report) -> None:
    """Fill the cache with the features that all runs with a config need."""
    import numpy as np
    import torch

    from fed3r_app.data import load_dataset
    from fed3r_app.data.unreadable import UnreadableImages
    from fed3r_app.features.backbone import load_backbone, resolve_device
    from fed3r_app.features.extraction import cached_features
    from fed3r_app.files.row_cache import cache_dir
    from fed3r_app.server.preflight import new_spec

    dataset = load_dataset(config.dataset, config.data_path, config.test_share)
    extract = partial(
        cached_features,
        load_backbone(new_spec(config)),
        device=resolve_device(config.device),
        dtype=config.extract_dtype,
        cache_dir=cache_dir(),
        unreadable=UnreadableImages(config.max_unreadable),
    )
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    total, before = sum(map(len, parts)), 0
    threads = torch.get_num_threads()
    torch.set_num_threads(available_cores())  # nothing else runs meanwhile
    try:
        for images in parts:
            cuts = range(_CHUNK, len(images), _CHUNK)
            for rows in np.split(np.arange(len(images)), cuts):

                def advance(done: int, _: int, before: int = before) -> None:
                    report(before + done, total)

                extract(images, rows, progress=advance)
                before += len(rows)
                report(before, total)
    finally:
        torch.set_num_threads(threads)
