"""When clients were last heard of, by the ledgers of the runs in a folder."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fed3r_app.runs.ledger import ACCEPTED, FAILED, REFUSED, REPEATED, REPLACED, Ledger
from fed3r_app.runs.listing import list_runs

_REPLIES = (ACCEPTED, REPLACED, REPEATED, REFUSED, FAILED)
_RECENT = 20  # runs


class Heard(NamedTuple):
    """A client's last reply, and the version of fed3r at its node, "" if unknown."""

    time: datetime
    version: str


def last_heard(folder: Path) -> dict[str, Heard]:
    """Return when each client last replied; nothing of runs that can't be read."""
    heard: dict[str, Heard] = {}
    with suppress(FileNotFoundError):
        for run in list_runs(folder)[:_RECENT]:
            with suppress(OSError, ValueError):
                directory = run.directory
                versions = directory.read_versions()
                for entry in Ledger(directory.ledger_path).entries():
                    client, time = entry.client, datetime.fromisoformat(entry.time)
                    known = heard.get(client)
                    if entry.outcome in _REPLIES and (not known or known.time < time):
                        heard[client] = Heard(time, versions.get(client, ""))
    return heard
