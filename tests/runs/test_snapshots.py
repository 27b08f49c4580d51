"""Snapshots: the sums come back bit for bit, or a sentence says why not."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fed3r_app.core import RidgeStatistics
from fed3r_app.files.tensors import write_tensors
from fed3r_app.runs.snapshots import (
    Snapshot,
    check_settings,
    load_snapshot,
    save_snapshot,
)
from tests.harness.full_disk import KeepsOld

D, C = 7, 4
SETTINGS: dict[str, Any] = {
    "backbone": "pixels",
    "rf-sigma": 0.1 + 0.2,
    "rf-dim": 0,
    "ones": False,
}
NAMES = ("cat", "dog", "ox", "ähre")
PROGRESS = {"rounds": 3, "upload_bytes": 2**53 + 1, "seconds": 1e-17}


def make_statistics(d: Any = D, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(20, d, generator=generator, dtype=torch.float64)
    y = torch.randint(0, C - 1, (20,), generator=generator)
    return RidgeStatistics.of(Z, y, C)


def make_snapshot(statistics: Any = None) -> Any:
    return Snapshot(
        statistics or make_statistics(),
        {"a": "1" * 64, "b": "2" * 64, "ü": "1" * 64},
        SETTINGS,
        PROGRESS,
        NAMES,
        ("gone",),
    )


def bits(tensor: Any) -> Any:
    return tensor.contiguous().numpy().tobytes()


def assert_same(one: Any, other: Any) -> None:
    for name in ("A", "b", "counts"):
        mine, theirs = getattr(one.statistics, name), getattr(other.statistics, name)
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        assert bits(mine) == bits(theirs)
    for name in (
        *("contributions", "settings", "progress"),
        *("class_names", "forgotten"),
    ):
        assert getattr(one, name) == getattr(other, name)


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "statistics.safetensors"


@pytest.mark.parametrize("d", [1, 2, D, 130])
def test_save_then_load_is_the_identity(path: Path, d: int) -> None:
    snapshot = make_snapshot(make_statistics(d))
    save_snapshot(path, snapshot)
    assert_same(load_snapshot(path), snapshot)


def test_a_matrix_that_is_not_symmetric_to_the_last_bit_comes_back_too(
    path: Path,
) -> None:
    stats = make_statistics()
    A = stats.A.clone()
    A[0, 1] = torch.nextafter(A[0, 1], torch.tensor(torch.inf, dtype=A.dtype))
    snapshot = make_snapshot(RidgeStatistics(A, stats.b, stats.counts))
    save_snapshot(path, snapshot)
    assert_same(load_snapshot(path), snapshot)


def test_a_symmetric_matrix_takes_half_the_room(path: Path) -> None:
    A = torch.eye(300, dtype=torch.float64)
    zeros = RidgeStatistics.zeros(300, C)
    save_snapshot(path, make_snapshot(RidgeStatistics(A, zeros.b, zeros.counts)))
    assert path.stat().st_size < 0.6 * A.nbytes


def test_the_statistics_of_nobody_can_be_saved(path: Path) -> None:
    snapshot = Snapshot(RidgeStatistics.zeros(D, C), {}, {}, {}, NAMES)
    save_snapshot(path, snapshot)
    assert_same(load_snapshot(path), snapshot)


def test_a_loaded_snapshot_outlives_its_file(path: Path) -> None:
    snapshot = make_snapshot()
    save_snapshot(path, snapshot)
    loaded = load_snapshot(path)
    save_snapshot(path, make_snapshot(make_statistics(seed=1)))
    path.unlink()
    assert_same(loaded, snapshot)


def test_settings_keep_their_types(path: Path) -> None:
    save_snapshot(path, make_snapshot())
    loaded = load_snapshot(path)
    for key, value in SETTINGS.items():
        assert type(loaded.settings[key]) is type(value)


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    save_snapshot(path, make_snapshot())
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"statistics\.safetensors must hold the"):
            load_snapshot(path)


def test_no_flipped_bit_is_taken_for_data(path: Path) -> None:
    snapshot = make_snapshot()
    save_snapshot(path, snapshot)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            loaded = load_snapshot(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:  # only in what carries no data
            assert_same(loaded, snapshot)
    assert refused > 0.98 * len(whole)


def test_a_safetensors_file_of_another_kind_is_refused(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"A": torch.zeros(2)}))
    with pytest.raises(ValueError, match="says None"):
        load_snapshot(path)
    write_tensors(path, "model of something", {"A": torch.zeros(2)}, {})
    with pytest.raises(ValueError, match="says 'model of something'"):
        load_snapshot(path)


def test_a_failed_save_leaves_the_snapshot_before(
    path: Path, keeps_old: KeepsOld
) -> None:
    save_snapshot(path, make_snapshot())
    other = make_snapshot(make_statistics(seed=1))
    keeps_old(path, lambda: save_snapshot(path, other))


def test_a_client_that_is_counted_and_forgotten_is_refused() -> None:
    with pytest.raises(ValueError, match="in the statistics or forgotten, got both"):
        Snapshot(make_statistics(), {"a": ""}, {}, {}, NAMES, ("a",))


def test_every_class_has_a_name() -> None:
    with pytest.raises(ValueError, match="class_names must name 4 classes, got 2"):
        Snapshot(make_statistics(), {}, {}, {}, ("cat", "dog"))


def test_the_classes_of_a_snapshot_may_be_numbered_anew() -> None:
    snapshot = make_snapshot()
    more = ("ant", "ox", "cat", "ähre", "dog")
    stats, then = snapshot.relabelled(more).statistics, snapshot.statistics
    for c, name in enumerate(NAMES):
        assert stats.counts[more.index(name)] == then.counts[c]
        assert torch.equal(stats.b[:, more.index(name)], then.b[:, c])
    assert torch.equal(stats.A, then.A)
    assert (stats.num_classes, stats.n) == (5, then.n)
    assert_same(snapshot.relabelled(more).relabelled(more), snapshot.relabelled(more))
    with pytest.raises(ValueError, match="must include 'cat'"):
        snapshot.relabelled(("ant", "dog", "ox", "ähre"))


def test_a_run_goes_on_with_the_same_settings_only() -> None:
    snapshot = make_snapshot()
    check_settings(snapshot.settings, dict(reversed(SETTINGS.items())))
    with pytest.raises(ValueError, match=r"rf-dim must be 0, as in .* got 5000"):
        check_settings(snapshot.settings, {**SETTINGS, "rf-dim": 5000})
    with pytest.raises(ValueError, match=r"extra must be None, .* got 1"):
        check_settings(snapshot.settings, {**SETTINGS, "extra": 1})
