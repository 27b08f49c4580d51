"""A process that dies at any moment, a full disk, a damaged file: nothing is lost.

The process ends at once, as by kill -9, before the k-th of the operations that change a
file of the run. Whatever k, the same command given again ends as if nothing had been.
"""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.cli import main as fed3r
from fed3r_app.errors import RunError
from fed3r_app.files import tensors, write_atomically
from fed3r_app.runs import ledger
from fed3r_app.runs.snapshots import load_snapshot
from tests.harness.nodes import ALL, LABELS, Federation
from tests.harness.runs import Outcome

KILLED = 99
# One client a round and a save after each: as many moments as there can be.
SLOWLY: dict[str, Any] = {"clients_per_round": 1, "keep_contributions": True}


@pytest.fixture(autouse=True)
def _save_after_every_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fed3r_app.server.journal._SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr("fed3r_app.server.journal._SNAPSHOT_SHARE", 1e9)


def dies_at(moment: Any, folder: Path, action: Any) -> Any:
    """Run an action in a child that dies before its k-th change to a file in a folder.

    Returns whether it lived to the end of the action.
    """

    def child() -> None:
        torch.set_num_threads(1)  # a fork has none of the threads of its parent
        left = [moment]

        def watch(event: Any, arguments: Any) -> None:
            writes = event == "open" and isinstance(arguments[2], int)
            writes = writes and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            changes = event in ("os.rename", "os.remove", "os.link", "os.truncate")
            if (writes or changes) and str(arguments[0]).startswith(str(folder)):
                left[0] -= 1
                if not left[0]:
                    os._exit(KILLED)

        sys.addaudithook(watch)
        os._exit(0 if action() in (0, None) else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode in (0, KILLED)
    return process.exitcode == 0


def assert_is_run_of(
    federation: Federation, directory: Path, clients: Any = ALL
) -> None:
    outcome = Outcome(directory)
    assert outcome.model.class_names == LABELS
    federation.assert_pooled(outcome, clients)
    assert sorted(outcome.snapshot.contributions) == sorted(clients)
    assert fed3r(["audit", str(directory)]) == 0
    assert [path.name for path in directory.glob(".*")] in ([], [".lock"])


def begin_or_resume(federation: Federation, **settings: Any) -> Any:
    """Run, or resume where there is something to resume."""
    resume = (federation.home / "runs" / "it" / "config.json").exists()
    return federation.run(ALL, resume=resume, **SLOWLY, **settings).directory


def num_asked(federation: Federation) -> int:
    return federation.grid.asked.get("train.statistics", 0)


# Every moment is one run more; those of the slow part are all there are.
FEW = [2, 5, 9, 14, 22, 31]
MANY = [moment for moment in range(1, 60) if moment not in FEW]


@pytest.mark.parametrize(
    "moment", [*FEW, *(pytest.param(moment, marks=pytest.mark.slow) for moment in MANY)]
)
def test_a_run_killed_at_any_moment_goes_on(
    federation: Federation, moment: Any
) -> None:
    folder = federation.home / "runs" / "it"
    dies_at(moment, folder, lambda: begin_or_resume(federation) and None)
    saved = folder / "statistics.safetensors"
    counted = load_snapshot(saved).contributions if saved.exists() else {}
    directory = begin_or_resume(federation)
    assert num_asked(federation) == 4 - len(counted)
    assert_is_run_of(federation, directory)


def test_it_may_be_killed_again_and_again(federation: Federation) -> None:
    folder = federation.home / "runs" / "it"
    for moment in range(9, 40):  # a little later each time
        if dies_at(moment, folder, lambda: begin_or_resume(federation) and None):
            break
    else:
        raise AssertionError("It never came to an end.")
    assert_is_run_of(federation, folder)


@pytest.mark.parametrize("moment", range(1, 14))
def test_forgetting_killed_at_any_moment_is_done_by_asking_again(
    federation: Federation, moment: Any
) -> None:
    directory = federation.run(ALL, **SLOWLY).directory
    command = ["forget", str(directory), "clinic-b"]
    dies_at(moment, directory, lambda: fed3r(command))
    assert fed3r(command) == 0
    others = [client for client in ALL if client != "clinic-b"]
    assert_is_run_of(federation, directory, others)
    # Nothing that is left holds anything of it: the audit has looked at the sketches.
    assert len(list((directory / "contributions").iterdir())) == 3
    assert not (directory / "statistics.earlier.safetensors").exists()


@pytest.mark.parametrize("moment", range(1, 12))
def test_replacing_killed_at_any_moment_is_done_by_asking_again(
    federation: Federation, moment: Any
) -> None:
    directory = federation.run(ALL, **SLOWLY).directory
    federation.add_images(federation.folder("clinic-c"), ["owl", "cat"], seed=1)

    def change() -> None:
        federation.run(ALL, resume=True, replace="clinic-c")

    dies_at(moment, directory, change)
    change()
    assert_is_run_of(federation, directory)


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let files of a name fill the disk: a part is written, then there is no room."""

    def full(path: Path, data: Any) -> None:
        if path.name.startswith(name):
            path.with_name(f".{path.name}.{'0' * 32}").write_bytes(
                data[: len(data) // 2]
            )
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    write = write_atomically
    monkeypatch.setattr(tensors, "write_atomically", full)


@pytest.mark.parametrize("name", ["statistics", "clinic-c", "model"])
def test_a_full_disk_ends_in_a_sentence_and_nothing_is_lost(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # clinic-c is the last to be asked with this seed, or nearly.
    with monkeypatch.context() as patch:
        fill_disk(patch, name)
        with pytest.raises(RunError, match="No space left on device") as caught:
            begin_or_resume(federation)
        assert len(str(caught.value).splitlines()) == 1
    directory = begin_or_resume(federation)
    assert_is_run_of(federation, directory)


def test_a_disk_that_is_full_for_a_while_only_costs_a_warning(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = write_atomically, [2]

    def full_twice(path: Path, data: Any) -> None:
        if path.name.startswith("statistics") and left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(tensors, "write_atomically", full_twice)
    assert_is_run_of(federation, begin_or_resume(federation))
    assert not left[0]


def test_a_ledger_that_can_not_be_written_ends_the_run(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, values: Any, header: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "append_line", full)
        with pytest.raises(RunError, match=r"The ledger .* No space left on device"):
            begin_or_resume(federation)
    assert_is_run_of(federation, begin_or_resume(federation))


def damage(path: Path, how: Any) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 4
    path.write_bytes(data if how == "flipped" else data[: len(data) // 2])


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    federation: Federation, how: Any
) -> None:
    directory = begin_or_resume(federation)
    earlier = load_snapshot(directory / "statistics.earlier.safetensors")
    missing = 4 - len(earlier.contributions)
    damage(directory / "statistics.safetensors", how)
    begin_or_resume(federation)
    assert num_asked(federation) == missing
    assert_is_run_of(federation, directory)


def test_without_any_whole_snapshot_all_are_asked_again(federation: Federation) -> None:
    directory = begin_or_resume(federation)
    for name in ("statistics", "statistics.earlier"):
        damage(directory / f"{name}.safetensors", "cut")
    begin_or_resume(federation)
    assert num_asked(federation) == 4
    assert_is_run_of(federation, directory)
    outcomes = [e.outcome for e in Outcome(directory).ledger]
    assert outcomes.count("lost") == 4


def test_nobody_is_left_out_unsaid_when_all_snapshots_are_damaged(
    federation: Federation,
) -> None:
    directory = begin_or_resume(federation)
    assert fed3r(["forget", str(directory), "clinic-a"]) == 0
    damage(directory / "statistics.safetensors", "cut")
    with pytest.raises(RunError, match=r"2 of 3 clients .* missing: clinic-b"):
        federation.run(["clinic-a", "clinic-c", "clinic-10"], resume=True, **SLOWLY)
    begin_or_resume(federation)
    assert_is_run_of(federation, directory, [c for c in ALL if c != "clinic-a"])


def test_a_ledger_that_is_lost_does_not_change_the_sums(federation: Federation) -> None:
    directory = begin_or_resume(federation)
    (directory / "ledger.jsonl").write_text("no line\nof a ledger\n")
    with pytest.raises(RunError, match="move it away: the statistics say who is"):
        begin_or_resume(federation)
    (directory / "ledger.jsonl").unlink()
    begin_or_resume(federation)
    assert not num_asked(federation)
    assert_is_run_of(federation, directory)
