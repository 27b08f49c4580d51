"""Contributions that are kept, so that a client can be forgotten without asking it.

One file each: the record as it was sent, whose it is, its digest, and the names of the
classes it has, since labels may be numbered anew when clients join.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flwr.app import Array, ArrayRecord

from fed3r_app.core import Contribution
from fed3r_app.files.tensors import read_tensors, write_tensors
from fed3r_app.runs.formats import CONTRIBUTION
from fed3r_app.wire import unpack_contribution

_SUFFIX = ".safetensors"


def contribution_path(folder: Path, client: str, digest: str) -> Path:
    """Return the file of a contribution: readable, and safe for any client id."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", client)[:40]
    unique = hashlib.sha256(f"{client}\0{digest}".encode(errors="replace"))
    return folder / f"{readable}-{unique.hexdigest()[:16]}{_SUFFIX}"


def save_contribution(
    folder: Path,
    client: str,
    digest: str,
    record: ArrayRecord,
    class_names: Sequence[str],
) -> None:
    """Keep a statistics record whose labels index ``class_names``."""
    tensors = {
        name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()
    }
    present = {class_names[c]: c for c in unpack_contribution(record).classes.tolist()}
    about = {"client": client, "digest": digest, "classes": present}
    folder.mkdir(exist_ok=True)
    path = contribution_path(folder, client, digest)
    write_tensors(path, CONTRIBUTION, tensors, about)


def load_contribution(
    folder: Path, client: str, digest: str, class_names: Sequence[str]
) -> Contribution | None:
    """Return a kept contribution, its labels as in ``class_names``, or None."""
    path = contribution_path(folder, client, digest)
    if not path.is_file():
        return None
    tensors, about = read_tensors(path, CONTRIBUTION)
    if (about["client"], about["digest"]) != (client, digest):
        raise ValueError(
            f"{path} must be of client {client!r}, got {about['client']!r}."
        )
    record = ArrayRecord({name: Array(tensors[name].numpy()) for name in tensors})
    contribution = unpack_contribution(record)
    places = {name: place for place, name in enumerate(class_names)}
    moved = {index: places[name] for name, index in about["classes"].items()}
    is_moved = any(index != place for index, place in moved.items())
    if is_moved or contribution.num_classes != len(class_names):
        return contribution.relabelled(moved, len(class_names))
    return contribution


def drop_contributions_except(folder: Path, contributions: Mapping[str, str]) -> None:
    """Remove every file but those of the contributions (client: digest) given."""
    for path in leftover_contributions(folder, contributions):
        path.unlink()


def leftover_contributions(
    folder: Path, contributions: Mapping[str, str]
) -> list[Path]:
    """Return the files of contributions that are not among those given."""
    wanted = {contribution_path(folder, *each) for each in contributions.items()}
    return sorted(set(folder.iterdir()) - wanted) if folder.is_dir() else []
