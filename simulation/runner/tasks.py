"""What a worker process is asked to do. Everything heavy is loaded there only."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.deployment.processes import INSTALLED_APP, toml
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store, run_name
from simulation.runner.yaml_file import Scalar

if TYPE_CHECKING:
    from simulation.engines.superlink import EphemeralSuperLink

INLINE, FLOWER = ENGINES = ("inline", "flower")
Report = Callable[[int, int], None]
# What the features of an image depend on, and where they are computed.
_FEATURE_KEYS = (
    *("dataset", "data-path", "backbone", "weights", "image-size"),
    *("extract-dtype", "device"),
)
_CHUNK = 4096


class TaskError(RuntimeError):
    """A task that failed, with a sentence that says why."""


@dataclass
class WorkerContext:
    """What a worker keeps from task to task.

    ``resources`` are closed when it ends; ``threads`` is its share of the processors,
    ``cores`` are all of them, for a task that has them to itself.
    """

    resources: ExitStack
    threads: int
    cores: int
    _superlink: EphemeralSuperLink | None = field(default=None, init=False)

    def superlink(self, home: Path) -> EphemeralSuperLink:
        """Return a SuperLink that stays up for all runs of this worker."""
        from simulation.engines.superlink import EphemeralSuperLink

        if self._superlink is None:
            self._superlink = self.resources.enter_context(EphemeralSuperLink(home))
        return self._superlink


@dataclass(frozen=True, eq=False)
class Task(ABC):
    """Something to do, with a name and a file for what it prints."""

    title: str
    log: Path

    @abstractmethod
    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Do it; raise where it fails."""


@dataclass(frozen=True, eq=False)
class RunTask(Task):
    """One run of the app."""

    run: ExperimentRun
    store: Store
    engine: str

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Run the app on the engine."""
        config: dict[str, Scalar] = {
            **self.run.config,
            "output-dir": str(self.store.runs),
            "run-name": run_name(self.run),
            "resume": self.store.prepare(self.run),
        }
        if self.engine == FLOWER:
            superlink = worker_context.superlink(self.store.root / ".flwr")
            nodes = f"num-supernodes={self.run.clients} client-resources-num-cpus=1"
            options = ("--run-config", toml(config), "--federation-config", nodes)
            if not superlink.run(str(INSTALLED_APP), *options):
                raise TaskError(_last_error(self.log))
        else:
            from fed3r_app.client_app import app as client_app
            from fed3r_app.server_app import app as server_app
            from simulation.engines.inline import run_inline

            run_inline(server_app, client_app, self.run.clients, config)


def _last_error(log: Path) -> str:
    """Return the last error in a log of Flower's."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    errors = re.findall(r"^.*ERROR\s*:\s*(.+)$", plain, re.MULTILINE)
    return str(errors[-1]).strip() if errors else "flwr run did not complete."


@dataclass(frozen=True, eq=False)
class FeaturesTask(Task):
    """The features of a data set, extracted once for all runs that need them."""

    config: Mapping[str, Scalar]

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Fill the cache with what is missing."""
        import numpy as np
        import torch

        from fed3r_app.data import load_dataset
        from fed3r_app.features.backbone import load_backbone, resolve_device
        from fed3r_app.features.cache import cache_dir
        from fed3r_app.features.extraction import cached_features
        from fed3r_app.features.spec import BackboneSpec

        values = (str(self.config[key]) for key in _FEATURE_KEYS)
        name, where, network, weights, size, dtype, device = values
        dataset = load_dataset(name, where)
        backbone = load_backbone(BackboneSpec(network, weights, int(size)))
        parts = [part for part in (dataset.train, dataset.test) if part is not None]
        total, before = sum(map(len, parts)), 0
        torch.set_num_threads(worker_context.cores)  # nothing else runs meanwhile
        extract = partial(
            cached_features,
            backbone,
            device=resolve_device(device),
            dtype=dtype,
            cache_dir=cache_dir(),
        )
        try:
            for images in parts:
                cuts = range(_CHUNK, len(images), _CHUNK)
                for rows in np.split(np.arange(len(images)), cuts):
                    progress = partial(_report_part, report, before, total)
                    extract(images, rows, progress=progress)
                    before += len(rows)
                    report(before, total)
        finally:
            torch.set_num_threads(worker_context.threads)


def _report_part(report: Report, before: int, total: int, done: int, _: int) -> None:
    """Report how much is done of all when so much of a part is done."""
    report(before + done, total)


def features_wanted(runs: list[ExperimentRun], log_folder: Path) -> list[FeaturesTask]:
    """Return one task for each set of features that runs read from the cache."""
    wanted: dict[str, FeaturesTask] = {}
    for run in runs:
        on_images = run.config["method"] == "none" and run.config["finetune"] != "lp"
        drawn = str(run.config["dataset"]).startswith("synthetic")
        if on_images or drawn:
            continue
        config = {key: run.config[key] for key in _FEATURE_KEYS}
        dataset, size = config["dataset"], config["image-size"]
        title, log = f"features of {dataset} at {size} px", f"features-{dataset}.log"
        task = FeaturesTask(title, log_folder / log, config)
        wanted.setdefault(json.dumps(config), task)
    return list(wanted.values())
