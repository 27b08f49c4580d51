"""The fine-tuning after a round, in one atomic file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fed3r_app.snapshots import Setting, read_tensors, write_tensors

_KIND = "checkpoint of Fed3R's fine-tuning, version 1"
_GROUPS = ("arrays", "running", "optimizer")
Named = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that the next round depends on.

    Parameters
    ----------
    arrays, running : dict
        What trains, and the running statistics of batch norm.
    optimizer : dict
        The server's momentum or control variate.
    settings : dict
        What must be the same in a run that goes on from here.
    numbers : dict
        Rounds trained, temperature, best round and accuracy so far.
    progress : dict
        Rounds, bytes and seconds so far.
    clients : tuple of str
        Those that train, fixed when the fine-tuning began.
    """

    arrays: Named
    running: Named
    optimizer: Named
    settings: dict[str, Setting]
    numbers: dict[str, float | int | None]
    progress: dict[str, int | float]
    clients: tuple[str, ...] = ()


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one before it stays until this one is whole."""
    tensors = {
        f"{group}/{name}": value
        for group in _GROUPS
        for name, value in getattr(checkpoint, group).items()
    }
    about = {
        "settings": checkpoint.settings,
        "numbers": checkpoint.numbers,
        "progress": checkpoint.progress,
        "clients": checkpoint.clients,
    }
    write_tensors(path, _KIND, tensors, about)


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file, bit for bit as it was saved."""
    tensors, about = read_tensors(path, _KIND)
    groups: dict[str, Named] = {group: {} for group in _GROUPS}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        groups[group][name] = value
    return Checkpoint(
        arrays=groups["arrays"],
        running=groups["running"],
        optimizer=groups["optimizer"],
        **about | {"clients": tuple(about.get("clients", ()))},
    )
