"""What a worker process is asked to do. Everything heavy is loaded there only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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

    Parameters
    ----------
    resources : ExitStack
        Closed when the worker ends.
    threads : int
        Its share of the processors.
    cores : int
        All processors, for a task that has them to itself.
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


class Task(Protocol):
    """Something to do, with a name and a file for what it says."""

    @property
    def title(self) -> str: ...  # noqa: D102

    @property
    def log(self) -> Path: ...  # noqa: D102

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Do it; raise where it fails."""


@dataclass(frozen=True, eq=False)
class RunTask:
    """One run of the app."""

    run: ExperimentRun
    store: Store
    engine: str

    @property
    def title(self) -> str:
        """The run's labels."""
        return self.run.title

    @property
    def log(self) -> Path:
        """The run's log."""
        return self.store.log(self.run)

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Run the app on the engine."""
        config: dict[str, Scalar] = {
            **self.run.config,
            "output-dir": str(self.store.runs),
            "run-name": run_name(self.run),
            "resume": self.store.prepare(self.run),
        }
        if self.engine == FLOWER:
            self._run_on_flower(worker_context, config)
        else:
            from fed3r_app.client_app import app as client_app
            from fed3r_app.server_app import app as server_app
            from simulation.engines.inline import run_inline

            run_inline(server_app, client_app, self.run.clients, config)

    def _run_on_flower(
        self, worker_context: WorkerContext, config: Mapping[str, Scalar]
    ) -> None:
        superlink = worker_context.superlink(self.store.root / ".flwr")
        completed = superlink.run(
            str(INSTALLED_APP),
            "--run-config",
            toml(config),
            "--federation-config",
            f"num-supernodes={self.run.clients} client-resources-num-cpus=1",
        )
        if not completed:
            raise TaskError(_last_error(self.log))


def _last_error(log: Path) -> str:
    """Return the last error in a log of Flower's."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    errors = re.findall(r"^.*ERROR\s*:\s*(.+)$", plain, re.MULTILINE)
    return str(errors[-1]).strip() if errors else "flwr run did not complete."


@dataclass(frozen=True, eq=False)
class FeaturesTask:
    """The features of a data set, extracted once for all runs that need them."""

    config: Mapping[str, Scalar]
    log: Path

    @property
    def title(self) -> str:
        """What is extracted."""
        size = self.config["image-size"]
        return f"features of {self.config['dataset']} at {size} px"

    def execute(self, worker_context: WorkerContext, report: Report) -> None:
        """Fill the cache with what is missing."""
        import numpy as np
        import torch

        from fed3r_app.data import load_dataset
        from fed3r_app.features.backbone import load_backbone, resolve_device
        from fed3r_app.features.cache import cache_dir
        from fed3r_app.features.extraction import cached_features
        from fed3r_app.features.spec import BackboneSpec

        config = self.config
        name, where, network, weights, size, dtype, device = map(
            str, (config[key] for key in _FEATURE_KEYS)
        )
        dataset = load_dataset(name, where)
        backbone = load_backbone(BackboneSpec(network, weights, int(size)))
        parts = [part for part in (dataset.train, dataset.test) if part is not None]
        total, before = sum(map(len, parts)), 0
        torch.set_num_threads(worker_context.cores)  # nothing else runs meanwhile
        try:
            for images in parts:
                cuts = range(_CHUNK, len(images), _CHUNK)
                for rows in np.split(np.arange(len(images)), cuts):
                    cached_features(
                        backbone,
                        images,
                        rows,
                        device=resolve_device(device),
                        dtype=dtype,
                        cache_dir=cache_dir(),
                        progress=lambda done, _, before=before: report(  # type: ignore[misc]
                            before + done, total
                        ),
                    )
                    before += len(rows)
                    report(before, total)
        finally:
            torch.set_num_threads(worker_context.threads)


def features_wanted(runs: list[ExperimentRun], log_folder: Path) -> list[FeaturesTask]:
    """Return one task for each set of features that runs read from the cache."""
    wanted: dict[str, FeaturesTask] = {}
    for run in runs:
        on_images = run.config["method"] == "none" and run.config["finetune"] != "lp"
        drawn = str(run.config["dataset"]).startswith("synthetic")
        if on_images or drawn:
            continue
        config = {key: run.config[key] for key in _FEATURE_KEYS}
        log = log_folder / f"features-{config['dataset']}.log"
        wanted.setdefault(json.dumps(config), FeaturesTask(config, log))
    return list(wanted.values())
