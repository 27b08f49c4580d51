"""The runs in a folder: what each came to, or how far it is.

Read without torch, and without any file that grows with the number of clients. A run
whose files are damaged is listed as such and disturbs no other.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fed3r_app.files import is_locked, parse_object
from fed3r_app.runs.directory import LATEST, RunDirectory, output_directory
from fed3r_app.runs.formats import check_format
from fed3r_app.runs.provenance import COMPLETE, FAILED, INTERRUPTED, Part, read_parts
from fed3r_app.runs.report import Values, number_of

RUNNING, PARTIAL, DAMAGED = "running", "partial", "damaged"
# Every state that a listed run may have.
STATES = (COMPLETE, PARTIAL, RUNNING, FAILED, INTERRUPTED, DAMAGED)
_TAIL = 64 * 1024  # bytes: more than any line of metrics


@dataclass(frozen=True)
class ListedRun:
    """A run in a list: what it is, and what is known of its outcome.

    Attributes
    ----------
    state : str
        One of ``STATES``. A process is at work in a running one; an interrupted one
        was stopped, and can be resumed.
    began : datetime
        In UTC.
    reason : str
        Why it failed, or what is damaged; else "".
    accuracy, clients, clients_counted : numbers or None
        Of the summary; before there is one, of the last round.
    rounds : int
        How many are through.
    parts : int
        1, and one more for each time that it was resumed; 1 for runs of 0.1.
    """

    directory: RunDirectory
    state: str
    began: datetime
    reason: str = ""
    method: str = ""
    dataset: str = ""
    accuracy: float | None = None
    clients: int | None = None
    clients_counted: int | None = None
    rounds: int = 0
    parts: int = 1

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return self.directory.path.name


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in a folder, the one that began last first.

    Links are passed over: ``latest`` is one, and others may lead anywhere.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                run = RunDirectory(Path(entry.path))
                if _is_run(run):
                    found.append(describe_run(run))
    return sorted(found, key=lambda run: (run.began, run.name), reverse=True)


def describe_run(run: RunDirectory) -> ListedRun:
    """Return the entry of a run in a list."""
    try:
        return _describe(run)
    except (OSError, ValueError, TypeError) as error:
        return ListedRun(run, DAMAGED, _first_date(run), " ".join(str(error).split()))


def find_run(chosen: str | Path) -> RunDirectory:
    """Return the run that a user means: a path, or a name in the folder of all runs."""
    path, results = Path(chosen), output_directory()
    places = [path] if "/" in str(chosen) else [path, results / path]
    folders = [RunDirectory(each) for each in places if each.is_dir()]
    if folders:
        # A folder of photographs here may have the name of a run there.
        return RunDirectory(max(folders, key=_is_run).path.resolve())
    names = [run.name for run in list_runs(results)] if results.is_dir() else []
    if names:
        names.append(LATEST)
    near = difflib.get_close_matches(str(chosen), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise FileNotFoundError(
        f"RUN must be the folder of a run, or the name of one in {results}, got "
        f"{str(chosen)!r}.{hint}"
    )


def _is_run(run: RunDirectory) -> bool:
    return run.config_path.is_file() or run.summary_path.is_file()


def _describe(run: RunDirectory) -> ListedRun:
    config, parts = _read(run.config_path), read_parts(run)
    summary = _read(run.summary_path)
    state, reason = _state(run, summary, parts)
    # What a resumed run had before says less than what it has now.
    is_last = bool(summary) and state != RUNNING
    values: Values = summary if is_last else {**summary, **_last_round(run)}
    return ListedRun(
        directory=run,
        state=state,
        began=_began(run, parts),
        reason=reason,
        method=str(values.get("method") or config.get("method", "")),
        dataset=str(values.get("dataset") or config.get("dataset", "")),
        accuracy=number_of(values, "accuracy"),
        clients=_count(values, "clients"),
        clients_counted=_count(values, "clients_counted"),
        rounds=_count(values, "rounds" if is_last else "round") or 0,
        parts=max(len(parts), 1),
    )


def _state(run: RunDirectory, summary: Values, parts: list[Part]) -> tuple[str, str]:
    """Return the state of a run, and why it failed if it did."""
    if is_locked(run.lock_path):
        return RUNNING, ""
    outcome = str(summary.get("status", COMPLETE)) if summary else ""
    # Runs of earlier versions have no parts, and only their summary speaks for them.
    last = parts[-1] if parts else Part({}, COMPLETE if summary else INTERRUPTED)
    about = summary.get("provenance")
    written = about.get("part") if isinstance(about, Mapping) else None
    if outcome and (last.status == COMPLETE or written == last.number):
        return outcome, last.reason if outcome != COMPLETE else ""
    return (FAILED, last.reason) if last.status == FAILED else (INTERRUPTED, "")


def _began(run: RunDirectory, parts: list[Part]) -> datetime:
    if parts:
        with suppress(ValueError):
            began = datetime.fromisoformat(str(parts[0].about.get("began")))
            return began if began.tzinfo else began.replace(tzinfo=UTC)
    return _first_date(run)


def _first_date(run: RunDirectory) -> datetime:
    """Return when the oldest of some files was written: about at the beginning."""
    times = []
    for path in (run.config_path, run.summary_path, run.metrics_path):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return datetime.fromtimestamp(min(times, default=0.0), UTC)


def _last_round(run: RunDirectory) -> dict[str, object]:
    """Return the values of the last rounds, each the latest one that is known."""
    known: dict[str, object] = {}
    with suppress(OSError, ValueError), run.metrics_path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
        # The first line is the header, or cut off; the last one is empty, or not whole.
        for line in file.read().split(b"\n")[1:-1]:
            values = parse_object(line.decode("utf-8", "replace"), str(file.name))
            known |= {key: value for key, value in values.items() if value is not None}
    return known


def _read(path: Path) -> dict[str, object]:
    """Return the JSON object in a file; empty if it is not there."""
    try:
        values = parse_object(path.read_text("utf-8", errors="replace"), str(path))
    except FileNotFoundError:
        return {}
    check_format(path, values)
    return values


def _count(values: Values, key: str) -> int | None:
    number = number_of(values, key)
    return None if number is None else int(number)
