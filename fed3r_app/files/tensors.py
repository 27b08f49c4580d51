"""Tensors and what JSON says about them, in one file that is never half written.

The format is safetensors, whose metadata carry JSON and a checksum of everything, so
that damage is never taken for data. Statistics, models and checkpoints share it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fed3r_app.files import write_atomically


class DamagedFile(ValueError):
    """A file that does not hold what was written to it."""


class _OtherKind(ValueError):
    """A whole file, but of another kind."""


Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_VERSIONED = re.compile(r"(.+, version )(\d+)")
# What reading a file may raise that is not whole, or not one of ours.
_MISSHAPEN = (KeyError, TypeError, AttributeError, IndexError, RuntimeError)
_UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError)


@contextmanager
def of_kind(path: Path, kind: str) -> Iterator[None]:
    """Let content that is whole, but of no such kind, raise DamagedFile."""
    try:
        yield
    except _MISSHAPEN as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DamagedFile(
            f"{path} must hold the {kind}, got content that is none ({what!a}). Did "
            "another program write it?"
        ) from error


def write_tensors(
    path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, object]
) -> None:
    """Write tensors and what JSON can say about them to one file, atomically.

    ``kind`` says what the file is, with ", version N" at the end.
    """
    stored = {
        name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
    }
    metadata = {"kind": kind, "about": json.dumps(about)}
    metadata["checksum"] = _checksum(kind, stored, about)
    write_atomically(path, safetensors.torch.save(stored, metadata))


def read_tensors(
    path: Path, kind: str, upgrades: Mapping[int, Upgrade] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file of that kind, and what it says about them.

    ``kind`` is that of today; ``upgrades[N]`` turns what version N says about the
    tensors into what the next one does.
    """
    upgrades = upgrades or {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            versions = _versions_to_pass(path, kind, metadata.get("kind"), upgrades)
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        about = json.loads(metadata["about"])
        whole = _checksum(metadata["kind"], tensors, about) == metadata["checksum"]
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
    for version in versions:
        about = upgrades[version](about)
    return tensors, about


def _versions_to_pass(
    path: Path, kind: str, found: str | None, upgrades: Mapping[int, Upgrade]
) -> range:
    """Return the versions between a file's kind and today's; raise for another kind."""
    if found == kind:
        return range(0)
    wanted, is_kind = _VERSIONED.fullmatch(kind), _VERSIONED.fullmatch(found or "")
    if wanted and is_kind and wanted[1] == is_kind[1]:
        newest, version = int(wanted[2]), int(is_kind[2])
        if version > newest:
            raise _OtherKind(
                f"{path} must hold the {kind} or an earlier one, got version "
                f"{version}. It was written by a newer version of fed3r: update this "
                "one."
            )
        if upgrades.keys() >= {*range(version, newest)}:
            return range(version, newest)
    raise _OtherKind(
        f"{path} must hold the {kind}, got a file that says {found!r}. Is it of "
        "another release, or another file?"
    )


def _checksum(
    kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, object]
) -> str:
    """Return a digest of all that a file holds."""
    ordered = sorted(tensors.items())
    shapes = [(name, str(value.dtype), list(value.shape)) for name, value in ordered]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([kind, about, shapes], sort_keys=True).encode())
    for _, value in ordered:
        digest.update(value.numpy().data)
    return digest.hexdigest()
