"""What has been run: one folder for all runs, shared by all experiments.

A run's folder is named after its settings, so that two experiments with a run in common
have it made once, and a changed setting makes a new run and touches no old one. So does
a changed file of weights.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fed3r_app.data.reading import RECIPE_VERSION
from fed3r_app.features.spec import WEIGHTS
from fed3r_app.files import file_lock
from fed3r_app.runs.directory import RunDirectory, output_directory
from simulation.runner.run_grid import ExperimentRun

# They say nothing of what a run comes to.
_WITHOUT_EFFECT = ("tracker",)
DONE, BEGUN, NEW = "done", "begun", "not run"


@dataclass(frozen=True)
class Store:
    """The folder of all experiments' results, an absolute path.

    Each experiment has a folder of its name in it, for its tables and pictures.
    """

    root: Path

    @classmethod
    def at(cls, output: Path | None) -> Store:
        """Return the store in a folder, by default `experiments` among the results."""
        chosen = output_directory() / "experiments" if output is None else output
        return cls(output_directory(str(chosen)))

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.root / "runs"

    def directory(self, run: ExperimentRun) -> RunDirectory:
        """Return the folder of a run."""
        return RunDirectory(self.runs / run_name(run))

    def log(self, run: ExperimentRun) -> Path:
        """Return the file for what a run says."""
        return self.runs / f"{run_name(run)}.log"

    def state(self, run: ExperimentRun) -> str:
        """Return DONE, BEGUN or NEW."""
        if self.summary(run) is not None:
            return DONE
        return BEGUN if self.directory(run).config_path.exists() else NEW

    def summary(self, run: ExperimentRun) -> dict[str, object] | None:
        """Return the outcome of a run that came to its end with these settings."""
        directory = self.directory(run)
        try:
            summary = directory.read_summary()
            config = json.loads(directory.config_path.read_text())
        except (OSError, ValueError):
            return None
        same = all(config.get(key) == value for key, value in _decisive(run))
        return summary if same and _is_complete(summary, run) else None

    def prepare(self, run: ExperimentRun) -> bool:
        """Make place for a run; return whether it is resumed where it stopped.

        A fine-tuning is resumed from its checkpoint. A closed form begins again: with
        its features in the cache it is quick.
        """
        directory = self.directory(run)
        if directory.checkpoint_path.is_file():
            return True
        shutil.rmtree(directory.path, ignore_errors=True)
        return False

    def claimed(self) -> AbstractContextManager[None]:
        """Return what keeps other runners away, or raises if one is at work."""
        self.runs.mkdir(parents=True, exist_ok=True)
        refusal = (
            f"Another run of experiments is at work in {self.root}. Wait for it, or "
            "give --output another folder."
        )
        return file_lock(self.root / ".lock", refusal)


def run_name(run: ExperimentRun) -> str:
    """Return the name of a run's folder: words for people, a digest for the rest."""
    config = run.config
    words = [config["dataset"], config["method"]]
    if config["finetune"] != "none":
        words += [config["finetune"], config["optimizer"]]
    words += [config["partition"], f"seed{config['seed']}"]
    # Features made by another recipe are other features.
    settings = [run.clients, _decisive(run), RECIPE_VERSION]
    content = json.dumps(settings + _weights_digests(str(config["weights"])))
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return "-".join([*map(str, words), digest])


def _decisive(run: ExperimentRun) -> list[tuple[str, object]]:
    """Return the settings that decide what a run comes to."""
    return sorted((k, v) for k, v in run.config.items() if k not in _WITHOUT_EFFECT)


def _weights_digests(weights: str) -> list[str]:
    """Return the digests of the files that weights name; none if they name no file."""
    if weights in WEIGHTS:
        return []
    path = Path(weights).expanduser().absolute()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file, file.stat()) for file in files if not file.is_dir()]
        return [_file_digest(f, s.st_mtime_ns, s.st_size) for f, s in found]
    except OSError:  # the run that reads it says so
        return []


@lru_cache
def _file_digest(path: Path, changed: int, size: int) -> str:
    """Return the sha256 of a file, read again when its time or its size is another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_complete(summary: dict[str, object], run: ExperimentRun) -> bool:
    """Return whether a summary is that of a run in which enough clients took part."""
    if summary.get("status") == "complete":
        return True
    # Drawn with replacement and with a limit of rounds, a part is the result.
    wanted = run.config["min-clients"] or (1 if run.config["statistics-rounds"] else 0)
    number = summary.get("clients_counted")
    return bool(wanted) and isinstance(number, int) and number >= int(wanted)
