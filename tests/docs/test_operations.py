"""The page about operations: its commands do what it says, its units are units."""

import configparser
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fed3r_app.cli import main
from tests.docs.command_lines import parse
from tests.docs.markdown import PAGES, blocks, commands

PAGE = PAGES["docs/operations.md"]
UNITS = blocks(PAGE, "ini")
PLACES = ("/etc/fed3r", "/var/lib/fed3r", "/backup")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in which the places of the page are."""
    for place in PLACES:
        (tmp_path / place.lstrip("/")).mkdir(parents=True)
    return tmp_path


def typed(root: Path, *programs: str) -> Iterator[list[str]]:
    """Yield the page's command lines of some programs, with places below a root."""
    for line in commands(PAGE):
        if line[0] in programs:
            words = [str(word) for word in line]
            for place in PLACES:
                words = [word.replace(place, f"{root}{place}") for word in words]
            yield words


def options(unit: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit)
    assert parser.sections() == ["Unit", "Service", "Install"]
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=["superlink", "node"])
def test_a_unit_starts_a_command_of_ours_privately(unit: str) -> None:
    service = options(unit)
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/fed3r/bin/fed3r"
    assert parse(["fed3r", *arguments])
    assert service["UMask"] == "0077"
    assert int(service["TimeoutStopSec"]) >= 30


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=["superlink", "node"])
def test_systemd_finds_no_fault_with_a_unit(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "fed3r.service"
    # Neither is on this machine: any program and user will do.
    text = unit.replace("/opt/fed3r/bin/fed3r", shutil.which("true") or "")
    path.write_text(text.replace("User=fed3r", "User=root"))
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "fed3r" in line]
    assert ours == []


def test_the_commands_about_certificates_work_one_after_the_other(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = root / "etc/fed3r/keys"
    done = 0
    for words in typed(root, "fed3r", "rm"):
        if words[0] == "rm":
            subprocess.run(words, check=True)
        elif words[1] == "certificates":
            assert main(words[1:]) == 0
            done += 1
    assert done == 4
    said = capsys.readouterr().out
    assert "superlink.example, superlink.internal" in said
    assert (keys / "nodes" / "clinic-8.pub").is_file()
    assert (keys / "server.key").is_file()


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("select count(*) from x").fetchone()[0]
        return found


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="there is no sqlite3")
def test_the_backup_has_what_is_in_the_journal_and_can_be_restored(root: Path) -> None:
    database = root / "var/lib/fed3r/superlink.db"
    backup = root / "backup/superlink.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.executescript("create table x (y); insert into x values (1);")
        shutil.copy(database, root / "alone.db")
        (words,) = typed(root, "sqlite3")
        subprocess.run(words, check=True)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        rows(root / "alone.db")
    assert rows(backup) == 1
    for words in typed(root, "rm", "cp"):
        if "superlink.db" in words[-2]:  # cp -a to the backup, rm, cp -a from there
            subprocess.run(" ".join(words), shell=True, check=True)
    assert rows(database) == 1
