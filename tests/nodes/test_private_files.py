"""What is made of nodes' own images is for its owner, and their logs say whose."""

import os
import re
import stat
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.common.logger import console_handler

from fed3r_app.cli import main as fed3r
from fed3r_app.files import private_files
from fed3r_app.files.row_cache import cache_dir
from tests.harness.nodes import ALL, Federation
from tests.harness.pixels import EXACT
from tests.harness.runs import AppRuns


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022


def open_to_others(folder: Path) -> list[str]:
    """Return what others may read below a folder that all may enter."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink()]
    return [p.name for p in paths if stat.S_IMODE(p.stat().st_mode) & 0o077]


def test_results_and_caches_of_real_nodes_are_for_their_owner_alone(
    federation: Federation,
) -> None:
    outcome = federation.run(ALL, keep_contributions=True)
    assert stat.S_IMODE(outcome.directory.parent.stat().st_mode) == 0o700
    assert open_to_others(outcome.directory.parent) == []
    # Also after a command of somebody with another umask.
    assert fed3r(["forget", str(outcome.directory), "clinic-b"]) == 0
    assert open_to_others(outcome.directory.parent) == []
    assert any(cache_dir().rglob("*"))
    assert open_to_others(cache_dir()) == []


def test_simulations_keep_the_umask(tmp_path: Path) -> None:
    outcome = AppRuns(tmp_path, EXACT | {"output-dir": str(tmp_path)})(2)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in outcome.directory.glob("*.json*")}
    assert modes == {0o644, 0o600}  # that is the sketches' file, always


def test_threads_share_the_umask() -> None:
    inside, go_on = threading.Barrier(2), threading.Event()

    def first() -> None:
        with private_files():
            inside.wait(10)
            go_on.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    with private_files():
        inside.wait(10)
    assert os.umask(0o077) == 0o077  # the other is still in there
    go_on.set()
    thread.join()


def test_a_node_s_lines_have_its_name_and_no_traceback_below_a_sentence(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(console_handler, "stream", shown)  # where lines are shown
    grid = federation.make_grid(ALL, round_timeout=20.0, min_clients=1)
    for path in federation.folder("clinic-b").rglob("*.png"):
        path.write_bytes(b"no image")

    def before(message: Message, context: Context) -> None:
        if message.metadata.message_type == "train.statistics":
            context.run_config = {**federation.run_config, "max-unreadable": 0.0}

    grid.before = before
    federation.run(grid=grid)
    said = shown.getvalue()
    line = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  clinic-b: ERROR: train.statistics failed"
    assert re.search(line, said, re.MULTILINE), said
    assert "Traceback" not in said and "\x1b" not in said
