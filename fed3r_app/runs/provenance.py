"""Where a run's numbers come from: versions, machine, command, and its parts.

``provenance.jsonl`` has two lines for each part of a run, which is one part and one
more for each time that it is resumed: how it began, and how it ended. What has no
second line was killed, or is still at work. No torch here, and nothing that fails or
delays a run.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fed3r_app
from fed3r_app.files import append_line, read_lines
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.formats import header, split_header
from fed3r_app.runs.report import format_bytes
from fed3r_app.wire.versions import CODE_VERSION

COMPLETE, FAILED, INTERRUPTED = "complete", "failed", "interrupted"
# What `fed3r` was called with, for the processes that it starts.
COMMAND_VARIABLE = "FED3R_COMMAND"
# Commands that run the app themselves. A SuperLink runs what others ask for, and must
# not hand its own command on.
_RUNNING = ("simulate", "demo", "experiments", "bench", "run", "flwr-run")
_FLOWER_APPS = "apps"  # Flower's folder of apps that were sent to it
_GIT_SECONDS = 2.0
_LONGEST_REASON = 500
_ENDINGS = ("status", "reason", "ended")  # keys of a second line


@dataclass(frozen=True)
class Part:
    """One part of a run: how it began, and how it ended if it did."""

    about: dict[str, Any]  # the first line
    status: str = ""  # "" if there is no second one
    reason: str = ""  # why it failed
    ended: str = ""  # date in UTC

    @property
    def number(self) -> int:
        """Return 1 for the beginning of a run, 2 after it was resumed once."""
        return int(self.about.get("part", 1))


@contextmanager
def recorded_part(run: RunDirectory, device: str, seed: int) -> Iterator[None]:
    """Write down how a part of a run begins, and how it ends."""
    number = len(read_parts(run)) + 1
    _append(run, {"part": number, **describe(), "device": device, "seed": seed})
    status, reason = COMPLETE, ""
    try:
        yield
    except BaseException as error:
        status = FAILED if isinstance(error, Exception) else INTERRUPTED
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise
    finally:
        end = {"part": number, "ended": _now(), "status": status, "reason": reason}
        _append(run, end)


def read_parts(run: RunDirectory) -> list[Part]:
    """Return the parts of a run, oldest first; what can't be read is left out."""
    parts: dict[object, Part] = {}
    with suppress(OSError, ValueError):
        path = run.provenance_path
        for line in split_header(path, read_lines(path))[1]:
            number = line.get("part")
            if "began" in line:
                parts[number] = Part(line)
            elif number in parts:
                said = {key: str(line.get(key, "")) for key in _ENDINGS}
                parts[number] = Part(parts[number].about, **said)
    return list(parts.values())


def earlier_version(run: RunDirectory) -> str:
    """Return the version of the code that the last part of a run had; "" if unknown."""
    parts = read_parts(run)
    if not parts:
        return run.read_version()
    versions = parts[-1].about.get("versions")
    return str(versions.get("fed3r", "")) if isinstance(versions, dict) else ""


def summary_block(run: RunDirectory) -> dict[str, object]:
    """Return what the summary says: the last part, and the earlier ones in short."""
    *earlier, last = read_parts(run) or [Part({})]
    block: dict[str, object] = dict(last.about)
    if earlier:
        block["earlier"] = [
            {
                **{key: part.about.get(key) for key in ("part", "began", "versions")},
                "status": part.status or INTERRUPTED,
            }
            for part in earlier
        ]
    return block


def provenance_rows(run: RunDirectory) -> list[tuple[str, str]]:
    """Return with what the last part of a run was made, label by label."""
    parts = read_parts(run)
    resumed = [("times resumed", str(len(parts) - 1))] if len(parts) > 1 else []
    return (rows_of(parts[-1].about) if parts else []) + resumed


def rows_of(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return with what a part was made, label by label."""
    machine, code = about.get("machine") or {}, about.get("code") or {}
    memory = machine.get("memory_bytes")
    rows = {
        **{"date": about.get("began"), "command": about.get("command")},
        **(about.get("versions") or {}),
        **{key: code.get(key) for key in ("commit", "bundle")},
        "uncommitted changes": "yes" if code.get("dirty") else None,
        **{key: machine.get(key) for key in ("os", "cpu", "cores")},
        "memory": format_bytes(memory) if memory else None,
        "device": about.get("device"),
    }
    return [(label, str(value)) for label, value in rows.items() if value is not None]


@contextmanager
def typed(program: str, arguments: Sequence[str]) -> Iterator[None]:
    """Let this process, and those that it starts, know what was typed to run an app."""
    if arguments and arguments[0] in _RUNNING:
        os.environ[COMMAND_VARIABLE] = f"{program} {shlex.join(arguments)}"
    try:
        yield
    finally:
        os.environ.pop(COMMAND_VARIABLE, None)


def describe() -> dict[str, object]:
    """Return what this process computes with: date, versions, code, machine, command.

    The name of the machine is left out: it is nobody's business.
    """
    return {
        "began": _now(),
        "versions": versions(),
        "code": _code(),
        "machine": _machine(),
        "command": _command(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the project and of what decides on its numbers."""
    return {
        "fed3r": CODE_VERSION,
        "Python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "flwr")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def _code() -> dict[str, object] | None:
    """Return commit and state of a clone, or the name of Flower's copy of the app."""
    root = Path(fed3r_app.__file__).parents[1]
    if root.parent.name == _FLOWER_APPS:  # the name ends with the bundle's digest
        return {"bundle": root.name}
    if not (root / ".git").exists():
        return None
    command = "git --no-optional-locks status --porcelain=v2 --branch".split()
    try:
        said = subprocess.run(
            [*command, "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        ).stdout.splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    commits = [line.split()[-1] for line in said if line.startswith("# branch.oid ")]
    dirty = any(not line.startswith("#") for line in said)
    return {"commit": commits[0], "dirty": dirty} if commits else None


def _machine() -> dict[str, object]:
    cores = os.cpu_count()
    with suppress(AttributeError, OSError):  # macOS has none
        cores = len(os.sched_getaffinity(0))
    memory = None
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    system = f"{platform.system()} {platform.release()}"
    return {"os": system, "cpu": _cpu(), "cores": cores, "memory_bytes": memory}


def _cpu() -> str:
    """Return the model of the processor, or its architecture."""
    with suppress(OSError, IndexError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        models = [line.split(":", 1)[1] for line in lines if "model name" in line]
        return models[0].strip()
    return platform.machine()


def _command() -> str:
    """Return the command that was typed, as far as it is known.

    The arguments of other programs are left out: Flower's hold a token.
    """
    program = Path(sys.argv[0] or "python").name
    return os.environ.get(COMMAND_VARIABLE) or shlex.quote(program)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _append(run: RunDirectory, line: dict[str, object]) -> None:
    """Add a line; a full disk is for others to complain about."""
    with suppress(OSError):
        append_line(run.provenance_path, line, header("provenance"))
