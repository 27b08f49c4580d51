"""Files that are whole or not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fed3r_app.files import write_atomically
from tests.harness.full_disk import KeepsOld


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, keeps_old: KeepsOld, call: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    keeps_old(path, lambda: write_atomically(path, b"new"), call)


def test_a_write_that_finds_no_room_leaves_the_old_file(tmp_path: Path) -> None:
    # A limit on the size of files fails half-way through, as a full disk does.
    path = tmp_path / "file"
    path.write_bytes(b"old")
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from fed3r_app.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "write_atomically(Path(sys.argv[1]), bytes(10**6))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
