"""Contributions that are kept: they come back as sent, under any name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.core import RidgeStatistics
from fed3r_app.runs.contributions import (
    contribution_path,
    drop_contributions_except,
    leftover_contributions,
    load_contribution,
    save_contribution,
)
from fed3r_app.wire import pack_statistics, unpack_contribution
from tests.harness.pixels import assert_same_statistics

NAMES = ("cat", "dog", "ox")
A, B = "a" * 64, "b" * 64


def record(form: str = "factor", dtype: str = "float64") -> Any:
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    return pack_statistics(Z, torch.tensor([0, 2, 2, 0, 2]), 3, form, dtype)


def load(folder: Path, class_names: Sequence[str] = NAMES) -> RidgeStatistics:
    """Return the statistics of the contribution of client 7."""
    contribution = load_contribution(folder, "7", A, class_names)
    assert contribution is not None
    return contribution.statistics()


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(("factor", "float64"), ("factor", "float32"), ("factor", "float16")),
        *(("packed", "float32"), ("dense", "float64")),
    ],
)
def test_a_contribution_comes_back_as_it_was_sent(
    tmp_path: Path, form: str, dtype: Any
) -> None:
    sent = record(form, dtype)
    save_contribution(tmp_path / "kept", "7", A, sent, NAMES)
    then = unpack_contribution(sent).statistics()
    assert_same_statistics(load(tmp_path / "kept"), then)


@pytest.mark.parametrize("form", ["factor", "packed", "dense"])
def test_labels_follow_the_names_of_the_classes(tmp_path: Path, form: str) -> None:
    sent = record(form)
    save_contribution(tmp_path / "kept", "7", A, sent, NAMES)
    names = ("ant", "ox", "bee", "cat")  # no dogs: there are none in it
    moved = load(tmp_path / "kept", names)
    then = unpack_contribution(sent).statistics()
    assert moved.counts.tolist() == [0, 3, 0, 2]
    assert torch.equal(moved.b[:, 1], then.b[:, 2])
    assert torch.equal(moved.b[:, 3], then.b[:, 0])
    assert torch.equal(moved.A, then.A)


@pytest.mark.parametrize(
    "client", ["../../etc/passwd", "a/b", "\0", ".", "ü" * 300, "CON", "\udcff", "a\nb"]
)
def test_any_client_id_is_a_safe_file_name(tmp_path: Path, client: Any) -> None:
    folder = tmp_path / "kept"
    save_contribution(folder, client, A, record(), NAMES)
    (path,) = folder.iterdir()
    assert path.suffix == ".safetensors" and path.name.isascii()
    assert load_contribution(folder, client, A, NAMES) is not None


def test_names_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    paths = {
        contribution_path(tmp_path, client, digest)
        for client in ("a/b", "a_b", "A_b")
        for digest in (A, B)
    }
    assert len({str(path).lower() for path in paths}) == 6


def test_what_was_not_kept_is_none(tmp_path: Path) -> None:
    assert load_contribution(tmp_path / "kept", "7", A, NAMES) is None
    save_contribution(tmp_path / "kept", "7", A, record(), NAMES)
    assert load_contribution(tmp_path / "kept", "7", B, NAMES) is None


def test_a_file_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    save_contribution(tmp_path, "7", A, record(), NAMES)
    contribution_path(tmp_path, "7", A).rename(contribution_path(tmp_path, "8", A))
    with pytest.raises(ValueError, match="must be of client '8', got '7'"):
        load_contribution(tmp_path, "8", A, NAMES)


def test_files_of_others_are_removed_on_request(tmp_path: Path) -> None:
    for client in ("1", "2", "3"):
        save_contribution(tmp_path, client, A, record(), NAMES)
    left = leftover_contributions(tmp_path, {"1": A, "2": B})
    assert left == sorted(contribution_path(tmp_path, c, A) for c in ("2", "3"))
    drop_contributions_except(tmp_path, {"1": A, "2": B})
    assert list(tmp_path.iterdir()) == [contribution_path(tmp_path, "1", A)]
    drop_contributions_except(tmp_path / "not there", {})


def test_statistics_keep_their_classes_apart() -> None:
    stats = RidgeStatistics.of(torch.eye(2), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="must keep apart"):
        stats.relabelled({0: 1, 1: 1}, 2)
