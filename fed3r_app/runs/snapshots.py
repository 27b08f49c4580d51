"""What a run can be resumed from: its statistics so far, its fine-tuning so far.

A snapshot holds the statistics with who is in them, a checkpoint the fine-tuning after
a round. Each is one file, replaced atomically. ``runs.statistics_store`` recovers a
crashed run from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from fed3r_app.core import RidgeStatistics
from fed3r_app.core.statistics import mirror_upper, pack_upper, unpack_upper
from fed3r_app.files.tensors import of_kind, read_tensors, write_tensors
from fed3r_app.runs.formats import (
    CHECKPOINT,
    STATISTICS,
    upgrade_checkpoint,
    upgrade_settings,
)
from fed3r_app.words import plural

Setting = str | int | float | bool | None
_DATA = "data-identity"  # a digest, which says nothing to a person
_GROUPS = ("arrays", "running", "optimizer")
Named = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The statistics of some clients."""

    statistics: RidgeStatistics
    contributions: dict[str, str]  # the digest of each client that is in them
    # What they depend on: backbone, feature map, … A resumed run must have the same.
    settings: dict[str, Setting]
    progress: dict[str, int | float]  # rounds, bytes and seconds so far
    class_names: tuple[str, ...]
    forgotten: tuple[str, ...] = ()  # taken out, and not to be asked again

    def __post_init__(self) -> None:
        if len(self.class_names) != self.statistics.num_classes:
            raise ValueError(
                f"class_names must name {plural(self.statistics.num_classes, 'class')}"
                ", got "
                f"{len(self.class_names)}."
            )
        if both := self.contributions.keys() & set(self.forgotten):
            raise ValueError(
                "A client must be in the statistics or forgotten, got both for "
                f"{min(both)}."
            )

    def relabelled(self, class_names: Sequence[str]) -> Snapshot:
        """Return the snapshot with the classes in another order, or with more."""
        if tuple(class_names) == self.class_names:
            return self
        places = {name: place for place, name in enumerate(class_names)}
        if unknown := [name for name in self.class_names if name not in places]:
            raise ValueError(
                f"The classes of the run must include {unknown[0]!r}, as in the "
                f"statistics saved before, got {plural(len(places), 'class')} "
                "without it."
            )
        moved = {c: places[name] for c, name in enumerate(self.class_names)}
        stats = self.statistics.relabelled(moved, len(places))
        return replace(self, statistics=stats, class_names=tuple(class_names))


def check_settings(
    earlier: Mapping[str, Setting], settings: Mapping[str, Setting]
) -> None:
    """Raise unless a run with these settings may resume an earlier one."""
    # The digest last: another data set or folder has others, too.
    keys = sorted(earlier.keys() | settings.keys(), key=lambda key: (key == _DATA, key))
    for key in keys:
        then, now = earlier.get(key), settings.get(key)
        if then == now:
            continue
        if key == _DATA:
            raise ValueError(
                "data-path must hold the training images of the run that is resumed, "
                "got others: some were added, removed or renamed (in a run of 0.1 "
                "also: changed). Put them back, or choose another run-name to begin a "
                "new run."
            )
        raise ValueError(
            f"{key} must be {then!r}, as in the run that is resumed, got {now!r}. "
            "Choose another run-name to begin a new run."
        )


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot; the one before it stays until this one is whole."""
    stats = snapshot.statistics.to("cpu")
    # Where A is symmetric to the last bit, one triangle is enough.
    A = pack_upper(stats.A) if torch.equal(stats.A, stats.A.T) else stats.A
    tensors = {"A": A, "b": stats.b, "counts": stats.counts}
    write_tensors(path, STATISTICS, tensors, _about(snapshot, "statistics"))


def load_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file, bit for bit as it was saved."""
    with of_kind(path, STATISTICS):
        tensors, about = read_tensors(path, STATISTICS, {2: upgrade_settings})
        A, b = tensors["A"], tensors["b"]
        if A.ndim == 1:
            A = mirror_upper(unpack_upper(A.numpy(), len(b), len(b)))
        about |= {key: tuple(about[key]) for key in ("class_names", "forgotten")}
        return Snapshot(RidgeStatistics(A, b, tensors["counts"]), **about)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that the next round of fine-tuning depends on."""

    arrays: Named  # what trains
    running: Named  # the running statistics of batch norm
    optimizer: Named  # the server's momentum or control variate
    settings: dict[str, Setting]  # a resumed run must have the same
    numbers: dict[str, float | int | None]  # rounds trained, temperature, accuracy
    progress: dict[str, int | float]  # rounds, bytes and seconds so far
    clients: tuple[str, ...] = ()  # those that train, fixed when it began


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one before it stays until this one is whole."""
    tensors = {
        f"{group}/{name}": value
        for group in _GROUPS
        for name, value in getattr(checkpoint, group).items()
    }
    write_tensors(path, CHECKPOINT, tensors, _about(checkpoint, *_GROUPS))


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a file, bit for bit as it was saved."""
    with of_kind(path, CHECKPOINT):
        tensors, about = read_tensors(path, CHECKPOINT, {1: upgrade_checkpoint})
        clients = tuple(about.get("clients", ()))
        about |= {"clients": clients, **{group: {} for group in _GROUPS}}
        for key, value in tensors.items():
            group, _, name = key.partition("/")
            about[group][name] = value
        return Checkpoint(**about)


def _about(saved: Snapshot | Checkpoint, *tensors: str) -> dict[str, object]:
    """Return all fields but those that are tensors."""
    names = [field.name for field in fields(saved) if field.name not in tensors]
    return {name: getattr(saved, name) for name in names}
