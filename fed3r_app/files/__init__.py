"""Files that survive a crash: atomic writes, JSON lines, a lock, tensors, rows.

Nothing here knows what a run is, nor imports any other room. JSON lines are only
appended to, and a line that a crash cut off is passed over.
"""

from __future__ import annotations

import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

_LOCK_SECONDS = 0.5


_private = {"depth": 0, "before": 0}
_privacy_lock = threading.Lock()


@contextmanager
def private_files() -> Iterator[None]:
    """Have all files that this process makes meanwhile be for their owner alone.

    The umask is the process's: several threads may be in here at once.
    """
    with _privacy_lock:
        if not _private["depth"]:
            _private["before"] = os.umask(0o077)
        _private["depth"] += 1
    try:
        yield
    finally:
        with _privacy_lock:
            _private["depth"] -= 1
            if not _private["depth"]:
                os.umask(_private["before"])


@contextmanager
def file_lock(file: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file; it ends with the process, however that ends.

    The file is for the lock alone: it may be emptied. If another process holds the
    lock, ``refusal`` is the message of the OSError.
    """
    try:
        # Not at once refused: `is_locked` holds it for a moment.
        lock = FileLock(file, timeout=_LOCK_SECONDS).acquire()
    except Timeout as error:
        raise OSError(refusal) from error
    with lock:
        yield


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file, which may be read-only."""
    try:
        import fcntl
    except ImportError:  # Windows: it is not known
        return False
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a system without locks
        return False
    return False


def append_line(
    path: Path, values: Mapping[str, object], header: Mapping[str, object]
) -> None:
    """Add a line to a file; it is in the file when this returns.

    A file that has no lines yet gets the header first.
    """
    append_lines(path, [values], header)


def append_lines(
    path: Path,
    lines: Iterable[Mapping[str, object]],
    header: Mapping[str, object],
    mode: int = 0o666,
) -> None:
    """Add some lines; a new file gets the mode without the umask."""
    with open(path, "ab+", opener=partial(os.open, mode=mode)) as file:
        _drop_torn_line(file)
        first = () if file.tell() else (header,)
        file.write("".join(map(line_of, (*first, *lines))).encode())


def line_of(values: Mapping[str, object]) -> str:
    """Return the line of an object."""
    return json.dumps(plain(values), allow_nan=False) + "\n"


def read_lines(path: Path) -> list[dict[str, object]]:
    """Return the objects in a file, without a last one that was cut off."""
    if not path.exists():
        return []
    # Only a newline ends a line: names may hold other separators.
    lines = path.read_text("utf-8", errors="replace").removesuffix("\n").split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_object(line, f"{path} line {number}"))
        except ValueError:
            if number < len(lines):
                raise
    return found


def parse_object(text: str, where: str) -> dict[str, object]:
    """Return the JSON object in a text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # brackets in brackets in brackets
        value = None
    if not isinstance(value, dict):
        raise ValueError(
            f"{where} must be a JSON object, got something else. Is the file damaged?"
        )
    return value


def plain(value: object) -> object:
    """Return the value as JSON knows it: NaN and infinity as null, paths as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut what follows the last newline: the start of a line that was interrupted."""
    kept = size = file.seek(0, os.SEEK_END)
    while kept and (file.seek(kept - 1), file.read(1)) != (kept - 1, b"\n"):
        kept -= 1
    if kept < size:
        file.truncate(kept)
    file.seek(kept)


def write_atomically(
    path: Path, data: bytes, *, sync: bool = True, mode: int = 0o666
) -> None:
    """Write a file that is there whole or not at all, whatever happens meanwhile.

    Without ``sync`` a crash of the machine may still lose it, or cut it off. The umask
    is taken away from ``mode``, and what the file that it replaces did not allow.
    """
    with suppress(OSError):
        mode &= path.stat().st_mode
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_by_link(path: Path, make_link: Callable[[Path], None]) -> None:
    """Let a path be a link; a system without links does without."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        make_link(temporary)
        os.replace(temporary, path)
    except OSError:
        pass
    finally:  # still there, too, if both names stood for the same file
        temporary.unlink(missing_ok=True)
