"""Checkpoints: the fine-tuning comes back bit for bit, or a sentence says why not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.core import RidgeStatistics
from fed3r_app.runs.snapshots import (
    Checkpoint,
    Snapshot,
    load_checkpoint,
    save_checkpoint,
    save_snapshot,
)
from tests.harness.full_disk import KeepsOld


def make_checkpoint(seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: Any) -> Any:
        return torch.randn(*shape, generator=generator)

    return Checkpoint(
        # The same names in all groups, as with Scaffold; strides as in channels_last.
        arrays={
            "backbone.0.weight": draw(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "classifier.weight": draw(3, 5),
        },
        running={"backbone.1.running_var": draw(4).abs()},
        optimizer={"backbone.0.weight": draw(2, 3, 4, 4), "0": draw(7)},
        settings={"lr": 0.1 + 0.2, "optimizer": "fedavgm", "augment": False},
        numbers={"trained": 3, "accuracy": None, "temperature": 0.1 + 0.2},
        progress={"rounds": 5, "upload_bytes": 2**53 + 1, "seconds": 1e-17},
        clients=("2", "10", "clinic-a"),
    )


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "checkpoint.safetensors"


def test_save_then_load_is_the_identity(path: Path) -> None:
    saved = make_checkpoint()
    save_checkpoint(path, saved)
    loaded = load_checkpoint(path)
    for group in ("arrays", "running", "optimizer"):
        mine, theirs = getattr(saved, group), getattr(loaded, group)
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert value.dtype == theirs[name].dtype
            assert torch.equal(value, theirs[name])
    for part in ("settings", "numbers", "progress", "clients"):
        assert getattr(saved, part) == getattr(loaded, part)


def test_parameters_are_saved_as_they_are_at_that_moment(path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    empty: dict[Any, Any] = {
        "running": {},
        "optimizer": {},
        "settings": {},
        "numbers": {},
    }
    checkpoint = Checkpoint(arrays={"a": parameter}, progress={}, **empty)
    save_checkpoint(path, checkpoint)
    parameter.data += 1
    assert torch.equal(load_checkpoint(path).arrays["a"], torch.ones(3))


def test_a_checkpoint_replaces_the_one_before_and_leaves_nothing_else(
    path: Path,
) -> None:
    save_checkpoint(path, make_checkpoint(0))
    save_checkpoint(path, make_checkpoint(1))
    expected = make_checkpoint(1).arrays["classifier.weight"]
    assert torch.equal(load_checkpoint(path).arrays["classifier.weight"], expected)
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_save_leaves_the_checkpoint_before(
    path: Path, keeps_old: KeepsOld
) -> None:
    save_checkpoint(path, make_checkpoint(0))
    keeps_old(path, lambda: save_checkpoint(path, make_checkpoint(1)))


def test_any_cut_and_any_flipped_bit_is_noticed(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    data = path.read_bytes()
    # Byte 9 begins the header: a space more or less there is still the same file.
    for place in [0, 20, len(data) // 2, len(data) - 1]:
        for damaged in (
            data[:place],
            data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
        ):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"checkpoint\.safetensors must hold"):
                load_checkpoint(path)


def test_another_kind_of_file_is_not_taken_for_a_checkpoint(path: Path) -> None:
    save_snapshot(path, Snapshot(RidgeStatistics.zeros(2, 2), {}, {}, {}, ("a", "b")))
    with pytest.raises(ValueError, match=r"must hold the checkpoint .* says 'statis"):
        load_checkpoint(path)


def test_no_file_is_said_to_be_missing(path: Path) -> None:
    with pytest.raises(OSError, match=r"checkpoint\.safetensors can't be read"):
        load_checkpoint(path)
