"""A real SuperLink with TLS and node authentication: who is let in, who is told."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.cli import main
from fed3r_app.deployment.certificates import make_certificates
from fed3r_app.deployment.processes import free_port
from tests.harness.deployment import PROJECT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(deploy: Any) -> Any:
    return deploy({}, secure=True, strangers=["known", "stranger"])


def run(federation: Any, *command: Any) -> Any:
    """Run a program of Flower to its end; return its exit code and its output."""
    program, *options = command
    # Into a file: a pipe would stay open as long as what the program started lives.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / program), *options],
            env=federation.deployment.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            code = process.wait(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return code, output.read()


@pytest.fixture
def place(federation: Any) -> Any:
    """Address and authority, as our commands take them."""
    authority = federation.certificates / "ca.crt"
    return federation.deployment.address, f"--root-certificates={authority}"


def supernode(federation: Any, authority: Any, key: Any, port: Any = None) -> Any:
    return run(
        federation,
        "flower-supernode",
        f"--superlink={federation.deployment.address}",
        f"--root-certificates={authority}",
        f"--auth-supernode-private-key={federation.certificates / 'nodes' / key}",
        f"--port={port or free_port()}",
    )


def test_a_stranger_is_refused(federation: Any) -> None:
    authority = federation.certificates / "ca.crt"
    code, output = supernode(federation, authority, "stranger")
    assert code != 0
    assert "Failed to activate SuperNode" in output
    assert "SuperNode ID" not in output


def test_a_node_does_not_trust_a_server_of_another_authority(
    federation: Any, tmp_path: Path
) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], [])
    code, output = supernode(federation, tmp_path / "ca.crt", "known")
    assert code != 0
    assert "certificate verify failed" in output


def test_a_busy_port_is_named(federation: Any) -> None:
    port = str(federation.deployment.port)
    code, output = run(federation, "flower-superlink", "--insecure", f"--port={port}")
    assert code != 0
    assert f"('127.0.0.1', {port}): address already in use" in output
    authority = federation.certificates / "ca.crt"
    code, output = supernode(federation, authority, "known", port)
    assert code != 0
    assert f"('127.0.0.1', {port}): address already in use" in output


def test_a_key_is_registered_once(
    federation: Any, place: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *place]) == 0
    key = str(federation.certificates / "nodes" / "known.pub")
    assert main(["register", *place, key]) == 0
    assert main(["register", *place, key]) == 0
    said = capsys.readouterr().out
    assert f"{key}: registered as known" in said
    assert f"{key}: was registered before" in said


def test_a_certificate_is_no_key(
    federation: Any, place: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = str(federation.certificates / "ca.crt")
    assert main(["register", *place, authority]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{authority} must be a node's public key" in line


def test_a_run_that_cannot_write_its_results_says_so_and_fails(
    federation: Any, place: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, output = run(
        federation,
        *("fed3r", "run", *place),
        f"--app={federation.deployment.stage(PROJECT)}",
        f'--run-config=backbone="pixels" output-dir="{tmp_path / "file"}"',
    )
    assert code == 1
    assert (
        f"output-dir must be a folder that can be written to, got {tmp_path}" in output
    )
    assert output.splitlines()[-1].startswith("fed3r: output-dir must be a folder")
