"""The ledger: all that happened, in order, and nothing that it should not hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.runs.ledger import (
    ACCEPTED,
    FORGOTTEN,
    FOUND,
    LOST,
    READMITTED,
    REFUSED,
    REPEATED,
    Ledger,
    LedgerEntry,
    forgotten_clients,
    standing_entries,
)

A, B = "a" * 64, "b" * 64


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path: Path) -> Any:
    return Ledger(path)


def outcomes(ledger: Any) -> Any:
    return [(entry.client, entry.outcome) for entry in ledger.entries()]


def test_entries_come_back_as_they_were_written(ledger: Any) -> None:
    entries = [
        LedgerEntry("clinic 7", ACCEPTED, A, 12),
        LedgerEntry("\u2028 ü\n", REFUSED, B, reason="a\nb"),
        LedgerEntry("\udcff", REPEATED, A),
    ]
    for entry in entries:
        ledger.append(entry)
    assert ledger.entries() == entries


def test_a_line_says_who_when_what_and_why_and_nothing_else(
    ledger: Any, path: Path
) -> None:
    ledger.append(LedgerEntry("7", REFUSED, A, 3, "x" * 10**6))
    header, line = map(json.loads, path.read_text().splitlines())
    assert header == {"format": 2, "kind": "ledger"}
    assert line.pop("time")
    assert line == {
        **{"client": "7", "outcome": REFUSED, "digest": A, "num_samples": 3},
        "reason": "x" * 500,
    }


def test_a_torn_line_is_not_read_and_makes_room(ledger: Any, path: Path) -> None:
    ledger.append(LedgerEntry("1", ACCEPTED, A, 1))
    whole = path.read_bytes()
    ledger.append(LedgerEntry("2", ACCEPTED, A, 1))
    for cut in range(len(whole), path.stat().st_size):
        path.write_bytes(path.read_bytes()[:cut])
        assert outcomes(ledger)[:1] == [("1", ACCEPTED)]
        ledger.append(LedgerEntry("2", ACCEPTED, A, 1))
        assert outcomes(ledger) == [("1", ACCEPTED), ("2", ACCEPTED)]


def test_other_content_is_named(ledger: Any, path: Path) -> None:
    path.write_text('{"round": 1}\n')
    with pytest.raises(ValueError, match=r"ledger\.jsonl must be the ledger"):
        ledger.entries()
    path.write_text('no\n{"client": "1", "outcome": "accepted"}\n')
    with pytest.raises(ValueError, match=r"line 1 must be .* move it away"):
        ledger.entries()


def test_a_ledger_that_can_not_be_written_is_named(ledger: Any, path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match=r"The ledger .*ledger\.jsonl must be writable"):
        ledger.append(LedgerEntry("1", ACCEPTED))


def test_who_stands_is_who_was_accepted_and_not_taken_out() -> None:
    entries = [
        LedgerEntry("1", ACCEPTED, A),
        LedgerEntry("1", REFUSED, B),
        LedgerEntry("1", REPEATED, A),
        LedgerEntry("2", ACCEPTED, A),
        LedgerEntry("2", LOST, A),
        LedgerEntry("3", ACCEPTED, A),
        LedgerEntry("3", FORGOTTEN, A),
        LedgerEntry("4", REFUSED, A),
    ]
    assert {c: e.digest for c, e in standing_entries(entries).items()} == {"1": A}
    assert forgotten_clients(entries) == {"3"}
    assert forgotten_clients([*entries, LedgerEntry("3", READMITTED)]) == set()


def test_after_a_crash_the_ledger_agrees_with_the_snapshot(ledger: Any) -> None:
    for client in ("saved", "lost", "forgotten"):
        ledger.append(LedgerEntry(client, ACCEPTED, A, 5))
    ledger.reconcile({"saved": A, "unknown": B}, {"forgotten"})
    assert outcomes(ledger)[3:] == [
        ("lost", LOST),
        ("forgotten", FORGOTTEN),
        ("unknown", FOUND),
    ]
    standing = standing_entries(ledger.entries())
    assert {c: e.digest for c, e in standing.items()} == {"saved": A, "unknown": B}
    before = ledger.entries()
    ledger.reconcile({"saved": A, "unknown": B}, {"forgotten"})
    assert ledger.entries() == before
