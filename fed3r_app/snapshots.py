"""The sums so far, with who is in them, in one file that survives a crash.

Also the format of that file, which the saved model shares: safetensors, whose
metadata carry JSON and a checksum of everything, so that damage is never taken for
data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fed3r_app.core import RidgeStatistics
from fed3r_app.run_directory import write_atomically

Setting = str | int | float | bool | None

_KIND = "statistics of Fed3R, version 2"


class DamagedFile(ValueError):
    """A file that does not hold what was written to it."""


class _OtherKind(ValueError):
    """A whole file, but of another kind."""


# What reading a file may raise that is not whole, or not one of ours.
_UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The statistics of some clients.

    Parameters
    ----------
    statistics : RidgeStatistics
        Their sum.
    contributions : dict
        Digest of the contribution of each client that is in it, by client id.
    settings : dict
        What the sums depend on: backbone, feature map, classes … A run that goes on
        from here must have the same.
    progress : dict
        Rounds, bytes and seconds so far.
    class_names : tuple of str
        Names of the C classes.
    forgotten : tuple of str
        Clients that were taken out of the sums and are not to be asked again.
    """

    statistics: RidgeStatistics
    contributions: dict[str, str]
    settings: dict[str, Setting]
    progress: dict[str, int | float]
    class_names: tuple[str, ...]
    forgotten: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_names) != self.statistics.num_classes:
            raise ValueError(
                f"class_names must name {self.statistics.num_classes} classes, got "
                f"{len(self.class_names)}."
            )
        if both := self.contributions.keys() & set(self.forgotten):
            raise ValueError(
                f"A client must be in the sums or forgotten, got both for {min(both)}."
            )

    def relabelled(self, class_names: Sequence[str]) -> Snapshot:
        """Return the snapshot with the classes in another order, or with more."""
        if tuple(class_names) == self.class_names:
            return self
        places = {name: place for place, name in enumerate(class_names)}
        if unknown := [name for name in self.class_names if name not in places]:
            raise ValueError(
                f"The classes of the run must include {unknown[0]!r}, as in the sums "
                f"saved before, got {len(places)} classes without it."
            )
        moved = {c: places[name] for c, name in enumerate(self.class_names)}
        stats = self.statistics.relabelled(moved, len(places))
        return replace(self, statistics=stats, class_names=tuple(class_names))


def check_settings(
    earlier: Mapping[str, Setting], settings: Mapping[str, Setting]
) -> None:
    """Raise unless a run with these settings may go on from an earlier one."""
    for key in sorted(earlier.keys() | settings.keys()):
        then, now = earlier.get(key), settings.get(key)
        if then != now:
            raise ValueError(
                f"{key} must be {then!r} as in the run to go on with, got {now!r}. "
                "Choose another run-name to begin a new run."
            )


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot; the one before it stays until this one is whole."""
    stats = snapshot.statistics.to("cpu")
    # Where A is symmetric to the last bit, one triangle is enough.
    A = _upper(stats.A) if torch.equal(stats.A, stats.A.T) else stats.A
    about = {
        "contributions": snapshot.contributions,
        "settings": snapshot.settings,
        "progress": snapshot.progress,
        "class_names": snapshot.class_names,
        "forgotten": snapshot.forgotten,
    }
    write_tensors(path, _KIND, {"A": A, "b": stats.b, "counts": stats.counts}, about)


def load_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file, bit for bit as it was saved."""
    tensors, about = read_tensors(path, _KIND)
    A, b = tensors["A"], tensors["b"]
    return Snapshot(
        statistics=RidgeStatistics(
            A=A if A.ndim == 2 else _symmetric(A, len(b)),
            b=b,
            counts=tensors["counts"],
        ),
        contributions=about["contributions"],
        settings=about["settings"],
        progress=about["progress"],
        class_names=tuple(about["class_names"]),
        forgotten=tuple(about["forgotten"]),
    )


def write_tensors(
    path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, object]
) -> None:
    """Write tensors and what JSON can say about them to one file, atomically.

    Parameters
    ----------
    path : Path
        File to write or replace.
    kind : str
        What the file is and in which version; `read_tensors` wants the same.
    tensors : mapping from str to Tensor
        On any device.
    about : mapping
        Values that JSON can hold.
    """
    stored = {
        name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
    }
    checksum = _checksum(kind, stored, about)
    metadata = {"kind": kind, "about": json.dumps(about), "checksum": checksum}
    write_atomically(path, safetensors.torch.save(stored, metadata))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file of that kind, and what it says about them."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_kind(path, kind, metadata.get("kind"))
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        about = json.loads(metadata["about"])
        whole = _checksum(kind, tensors, about) == metadata["checksum"]
    except OSError as error:
        raise OSError(f"{path} can't be read: {error}.") from error
    except _OtherKind:
        raise
    except _UNREADABLE as error:
        raise DamagedFile(
            f"{path} must hold the {kind}, got something else: {error}. Is the file "
            "cut off or damaged?"
        ) from error
    if not whole:
        raise DamagedFile(
            f"{path} must hold the {kind} as they were written, got content that "
            "does not fit its checksum. The file is damaged."
        )
    return tensors, about


def _check_kind(path: Path, kind: str, found: str | None) -> None:
    """Raise unless a file says that it is of a kind."""
    if found != kind:
        raise _OtherKind(
            f"{path} must hold the {kind}, got a file that says {found!r}. Is it of "
            "another release, or another file?"
        )


def _checksum(
    kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, object]
) -> str:
    """Return a digest of all that a file holds."""
    shapes = [
        (name, str(tensor.dtype), list(tensor.shape))
        for name, tensor in sorted(tensors.items())
    ]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([kind, about, shapes], sort_keys=True).encode())
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _upper(A: Tensor) -> Tensor:
    """Return the upper triangle of A, row by row, without tables of indices."""
    return torch.cat([A[row, row:] for row in range(len(A))])


def _symmetric(upper: Tensor, d: int) -> Tensor:
    """Return the symmetric matrix with that upper triangle."""
    A = upper.new_zeros(d, d)
    start = 0
    for row in range(d):
        A[row, row:] = A[row:, row] = upper[start : start + d - row]
        start += d - row
    return A
