"""``fed3r superlink``: a SuperLink and its SuperExec that live and end together."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from fed3r_app.cli import main
from fed3r_app.deployment.certificates import make_certificates
from fed3r_app.deployment.nodes import list_nodes, register_node
from fed3r_app.deployment.processes import free_port
from fed3r_app.deployment.superlink import SuperLink


class Running:
    """A server as a process, started by its command."""

    def __init__(self, folder: Path, certificates: Path, database: Path) -> None:
        port = free_port()
        self.log = folder / "server.log"
        address = f"127.0.0.1:{port}"
        self.superlink = SuperLink(address, certificates / "ca.crt")
        command = [sys.executable, "-m", "fed3r_app.cli", "superlink"]
        command += ["--certificates", str(certificates), "--port", str(port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--database", str(database)],
                cwd=folder,
                env={**os.environ, "FLWR_HOME": str(folder / "flwr")},
                stdout=log,
                stderr=log,
            )
        self.wait_for(lambda: "is up" in self.log.read_text())

    def wait_for(self, done: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        try:
            self.superlink.check()
        except OSError:
            return False
        return True

    def children(self) -> dict[str, int]:
        """Return the ids of the programs it has started, by name."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue  # it has just ended
            is_flowers = any("flower-" in word for word in words[:2])
            if int(parent) == self.process.pid and is_flowers:
                found[Path(words[1]).name] = int(folder.name)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


def wait_until_gone(processes: Iterable[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def running(folder: Path, certificates: Path, database: Path) -> Iterator[Running]:
    folder.mkdir(exist_ok=True)
    server = Running(folder, certificates, database)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"], ["clinic-1"])
    return folder


@pytest.mark.slow
def test_it_heals_keeps_to_itself_and_leaves_nothing_running(
    tmp_path: Path, certificates: Path
) -> None:
    database = tmp_path / "state" / "superlink.db"
    with running(tmp_path, certificates, database) as server:
        children = server.children()
        assert children.keys() == {"flower-superlink", "flower-superexec"}
        files = [*database.parent.iterdir()]
        assert database in files
        assert {S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        register_node(
            server.superlink, certificates / "nodes" / "clinic-1.pub", "clinic-1"
        )
        time.sleep(5.0)  # what ends sooner would end again
        os.kill(children["flower-superlink"], signal.SIGKILL)
        server.wait_for(lambda: "SuperLink has ended (-9)" in server.log.read_text())
        server.wait_for(server.is_healthy)
        assert len(list_nodes(server.superlink)) == 1
        started = {**children, **server.children()}
        assert server.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in started.values())
    assert not server.is_healthy()


@pytest.mark.slow
def test_the_documented_backups_hold_what_the_database_had(
    tmp_path: Path, certificates: Path
) -> None:
    """The file alone does not: most is in the journal beside it."""
    database = tmp_path / "superlink.db"
    with running(tmp_path, certificates, database) as server:
        register_node(
            server.superlink, certificates / "nodes" / "clinic-1.pub", "clinic-1"
        )
        for folder in ("alone", "running", "stopped"):
            (tmp_path / folder).mkdir()
        shutil.copy(database, tmp_path / "alone")
        copy = tmp_path / "running" / "superlink.db"
        # As `sqlite3 superlink.db '.backup …'` does.
        with (
            closing(sqlite3.connect(database)) as one,
            closing(sqlite3.connect(copy)) as other,
        ):
            one.backup(other)
    for path in tmp_path.glob("superlink.db*"):
        shutil.copy(path, tmp_path / "stopped")
    for folder in ("running", "stopped"):
        restored = tmp_path / folder / "superlink.db"
        with running(tmp_path / folder, certificates, restored) as server:
            assert len(list_nodes(server.superlink)) == 1
            started = server.children().values()
            server.process.kill()  # it gets no chance to end them
            server.process.wait()
            wait_until_gone(started)
    with closing(sqlite3.connect(tmp_path / "alone" / "superlink.db")) as alone:
        tables = alone.execute("select count(*) from sqlite_master").fetchone()[0]
        assert not tables or not alone.execute("select * from node").fetchall()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "--certificates must be given to listen on 0.0.0.0"),
        (["--certificates", "/nowhere"], "got /nowhere without ca.crt"),
        (["--host", "::1"], "--host must be a name or an IPv4 address, got '::1'"),
    ],
)
def test_what_it_can_not_be_started_with_is_said_at_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    database = tmp_path / "superlink.db"
    port = str(free_port())
    command = ["superlink", "--database", str(database), "--port", port, *arguments]
    assert main(command) in (1, 2)
    assert sentence in capsys.readouterr().err
    assert not database.exists()
