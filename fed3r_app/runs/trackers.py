"""Where else a run's numbers go while it runs: TensorBoard, Weights & Biases, your own.

A tracker gets the settings, the numbers of each line of metrics.jsonl, and in the end
those of the summary with the picture. Its package is imported only if it is named. One
that breaks down on the way is left alone: a run does not fail because of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fed3r_app.errors import RunError
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.provenance import read_parts
from fed3r_app.runs.report import Values, number_of

# Flower's own log, without Flower: settings are checked before it is imported.
_LOG = logging.getLogger("flwr")
Numbers = Mapping[str, float]
Settings = Mapping[str, str | int | float | bool]


class Tracker(Protocol):
    """What a tracker does. It is made with the run's directory and its settings.

    Attributes
    ----------
    package : str
        What it imports: refused before a run begins if it is not installed.
    """

    package: ClassVar[str]

    def log(self, numbers: Numbers, round: int) -> None:
        """Take the numbers of a round."""

    def finish(self, numbers: Numbers, picture: Path, round: int) -> None:
        """Take the numbers of the summary, and the picture of the run."""

    def close(self) -> None:
        """Write what is not written yet: the run has ended, somehow."""


class TensorBoard:
    """Event files in the directory of the run, for ``tensorboard --logdir results``."""

    package: ClassVar[str] = "tensorboard"

    def __init__(self, run: RunDirectory, settings: Settings) -> None:
        self._run, self._settings = run, settings
        self._writer: Any = None  # made when there is something to write

    def log(self, numbers: Numbers, round: int) -> None:
        """Add a point to the curve of each number."""
        writer = self._open(round)
        for name, number in numbers.items():
            writer.add_scalar(name, number, round)
        writer.flush()

    def finish(self, numbers: Numbers, picture: Path, round: int) -> None:
        """Add the summary, as ``summary/…``, and the picture."""
        import numpy as np
        from PIL import Image

        self.log({f"summary/{name}": n for name, n in numbers.items()}, round)
        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._open(round).add_image("curves", pixels, round, dataformats="HWC")

    def close(self) -> None:
        """Close the event file."""
        if self._writer:
            self._writer.close()

    def _open(self, round: int) -> Any:
        """Return the writer; what a resumed run had from this round on is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(str(self._run.path), purge_step=round)
            text = json.dumps(dict(self._settings), indent=2)
            self._writer.add_text("config", f"```json\n{text}\n```")
        return self._writer


class WandB:
    """A run of Weights & Biases, also offline; WANDB_* variables work as usual.

    Name, load and programs of the machine stay here.
    """

    package: ClassVar[str] = "wandb"

    def __init__(self, run: RunDirectory, settings: Settings) -> None:
        import wandb

        began = [part.about.get("began") for part in read_parts(run)[:1]]
        identity = hashlib.sha256(f"{run.path.name} {began}".encode()).hexdigest()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fed3r"),
            name=run.path.name,
            id=identity[:12],  # the same one after a resume
            resume="allow",
            dir=run.path,
            config=dict(settings),
            settings=wandb.Settings(
                silent=True,
                host="",
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )

    def log(self, numbers: Numbers, round: int) -> None:
        """Add a step to the history."""
        self._run.log(dict(numbers), step=round)

    def finish(self, numbers: Numbers, picture: Path, round: int) -> None:
        """Set the summary, and add the picture."""
        import wandb

        self._run.log({"curves": wandb.Image(str(picture))}, step=round)
        self._run.summary.update(dict(numbers))

    def close(self) -> None:
        """Write or send what is left."""
        self._run.finish()


TRACKERS: dict[str, Callable[[RunDirectory, Settings], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
}


def check_tracker(name: str) -> None:
    """Raise ValueError unless a tracker is known and installed; "" is none."""
    if not name:
        return
    if name not in TRACKERS:
        raise ValueError(f"tracker must be '' or {_or(TRACKERS)}, got {name!r}.")
    package = getattr(TRACKERS[name], "package", "")
    if package and find_spec(package) is None:
        raise ValueError(
            f"tracker must be one that is installed where the ServerApp runs, got "
            f"{name!r}: pip install {package}"
        )


@contextmanager
def tracking(name: str, run: RunDirectory, settings: Settings) -> Iterator[Guarded]:
    """Give the tracker of that name, and close it in the end; "" takes nothing."""
    check_tracker(name)
    try:
        made = TRACKERS[name](run, settings) if name else None
    except Exception as error:  # whatever its package raises
        raise RunError(f"tracker = {name!r} could not start: {error}") from error
    tracker = Guarded(name, made)
    try:
        yield tracker
    finally:
        tracker.close()


class Guarded:
    """A tracker, or none, that is left alone once it has raised an error."""

    def __init__(self, name: str = "", tracker: Tracker | None = None) -> None:
        self._name, self._tracker = name, tracker

    def log(self, values: Values, round: int) -> None:
        """Hand over the numbers of a round."""
        self._call(lambda tracker: tracker.log(_numbers(values), round))

    def finish(self, summary: Values, picture: Path, round: int) -> None:
        """Hand over the numbers of a summary, and the picture."""
        self._call(lambda tracker: tracker.finish(_numbers(summary), picture, round))

    def close(self) -> None:
        """Close the tracker."""
        self._call(lambda tracker: tracker.close())

    def _call(self, use: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            use(self._tracker)
        except Exception as error:  # whatever its package raises
            self._tracker = None
            _LOG.warning("tracker = %r gets no more: %s", self._name, error)


def _numbers(values: Values) -> Numbers:
    found = {name: number_of(values, name) for name in values if name != "round"}
    return {name: number for name, number in found.items() if number is not None}


def _or(names: Mapping[str, object]) -> str:
    return " or ".join(map(repr, names))
