"""The web page of a folder of runs, served by the command as a user starts it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn

from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import Ledger, LedgerEntry
from fed3r_app.ui.serve import guarded_app


@dataclass(frozen=True)
class Served:
    """A page that is up."""

    folder: Path
    url: str  # as it was printed
    pid: int = 0  # of the server, where it is a process of its own

    @property
    def address(self) -> str:
        """Host and port."""
        return self.url.split("/")[2]

    def processor_seconds(self) -> float:
        """Return the processor time that the server has taken so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Return status, body and headers of an answer; the path is sent as it is."""
        connection = HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return a value that the page asks for."""
        status, body, _ = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def refusal(self, path: str, **options: Any) -> tuple[int, str]:
        """Return status and sentence of an answer that is an error."""
        status, body, _ = self.ask(path, **options)
        return status, str(json.loads(body)["error"])


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """Start `fed3r ui` on a folder, on a free port; stop it in the end."""
    command = [sys.executable, "-m", "fed3r_app.cli", "ui", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        for line in process.stdout:
            found = re.search(r"http://\S+", line)
            if found:
                yield Served(folder, found[0], process.pid)
                return
        raise AssertionError("fed3r ui printed no address")
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def served_to_others(folder: Path) -> Iterator[Served]:
    """Serve what `--host 0.0.0.0` would; from here, other machines don't reach it."""
    app, token = guarded_app(folder, "0.0.0.0")
    config = uvicorn.Config(app, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            port = listener.getsockname()[1]
            yield Served(folder, f"http://127.0.0.1:{port}/?token={token}")
        finally:
            server.should_exit = True
            thread.join()


def write_run(folder: Path, name: str, rounds: int = 3, clients: int = 4) -> Any:
    """Write the files of a finished run, each number in them another one."""
    run = RunDirectory(folder / name)
    run.path.mkdir()
    seed = sum(map(ord, name))
    run.write_config({"method": "fed3r", "dataset": "digits", "seed": seed})
    line: dict[str, object] = {}
    for number in range(1, rounds + 1):
        line = {
            "round": number,
            "clients_counted": clients * number // rounds,
            "accuracy": number / (rounds + 1) + seed % 97 / 10_000,
            "upload_bytes": 1234 * number + seed,
            "download_bytes": 77 * number,
            "paper_upload_bytes": 98_765 * number,
            "paper_download_bytes": 0,
            "flops_per_client": 3.5e6 * number,
            "seconds": 1.25 * number,
        }
        run.append_metrics(line)
    ledger = Ledger(run.ledger_path)
    for client in range(clients):
        ledger.append(LedgerEntry(f"clinic-{client}", "accepted", "d", 10 + client))
    about = {"method": "fed3r", "dataset": "digits", "status": "complete"}
    counted = {"clients": clients, "clients_counted": clients, "rounds": rounds}
    run.write_summary({**about, **counted, **line})
    return run
