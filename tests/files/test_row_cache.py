"""The cache: what is kept comes back bit for bit, what is damaged does not."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fed3r_app.files.row_cache import SparseFileCache, cache_dir

DIM, NUM = 7, 20
RECORD = 4 * DIM + 4
ALL = np.arange(NUM)


def features_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    table = np.random.default_rng(0).normal(size=(NUM, DIM)).astype(np.float32)
    return np.asarray(table[rows])


def cache_in(folder: Path) -> SparseFileCache:
    return SparseFileCache(folder / "key", DIM, {"what": "a test"})


@pytest.fixture
def filled(tmp_path: Path) -> SparseFileCache:
    cache = cache_in(tmp_path)
    cache.write(ALL, features_of(ALL))
    return cache


@settings(max_examples=30)
@given(
    kept=st.lists(st.integers(0, NUM - 1), max_size=12),
    asked=st.lists(st.integers(0, NUM - 1), max_size=12),
)
def test_exactly_the_kept_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, kept: list[int], asked: list[int]
) -> None:
    cache = cache_in(tmp_path_factory.mktemp("cache"))
    rows = np.array(kept, dtype=np.int64)
    cache.write(rows, features_of(rows))
    wanted = np.array(asked, dtype=np.int64)
    features, found = cache.read(wanted)
    assert found.tolist() == [row in kept for row in asked]
    assert np.array_equal(features[found], features_of(wanted)[found])


def test_zeros_are_not_an_absent_row_and_nan_and_infinity_survive(
    tmp_path: Path,
) -> None:
    cache = cache_in(tmp_path)
    cache.write(np.array([3]), np.zeros((1, DIM), dtype=np.float32))
    assert cache.read(np.arange(5))[1].tolist() == [False] * 3 + [True, False]
    odd = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-45, 0, 1]], dtype=np.float32)
    cache.write(np.array([2]), odd)
    assert cache.read(np.array([2]))[0].tobytes() == odd.tobytes()


@pytest.mark.parametrize("length", [0, 3, 5 * RECORD, 5 * RECORD + 9, NUM * RECORD - 1])
def test_a_truncated_file_loses_only_its_end(
    filled: SparseFileCache, tmp_path: Path, length: int
) -> None:
    path = tmp_path / "key" / "features.bin"
    path.write_bytes(path.read_bytes()[:length])
    features, found = filled.read(ALL)
    assert found.tolist() == [row < length // RECORD for row in ALL]
    assert np.array_equal(features[found], features_of(ALL)[found])
    filled.write(ALL[~found], features_of(ALL[~found]))
    assert np.array_equal(filled.read(ALL)[0], features_of(ALL))


@settings(max_examples=30)
@given(place=st.integers(0, NUM * RECORD - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_row(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache = cache_in(folder)
    cache.write(ALL, features_of(ALL))
    path = folder / "key" / "features.bin"
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
    features, found = cache.read(ALL)
    assert np.flatnonzero(~found).tolist() == [place // RECORD]
    assert np.array_equal(features[found], features_of(ALL)[found])


def test_damage_is_reported_with_its_size(
    filled: SparseFileCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key" / "features.bin"
    path.write_bytes(b"\1" * (2 * RECORD) + path.read_bytes()[2 * RECORD :])
    with caplog.at_level(logging.WARNING):
        filled.read(ALL)
    assert "2 damaged rows" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("a file where the folder should be")
    cache = cache_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        cache.write(ALL, features_of(ALL))
        cache.write(ALL, features_of(ALL))
    assert caplog.text.count("Rows are not kept in") == 1
    assert not cache.read(ALL)[1].any()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "features.bin").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        cache_in(tmp_path).write(ALL, features_of(ALL))
    assert "No space left" in caplog.text


def test_the_folder_says_what_it_holds(filled: SparseFileCache, tmp_path: Path) -> None:
    files = sorted(path.name for path in (tmp_path / "key").iterdir())
    assert files == ["about.json", "features.bin"]
    about = json.loads((tmp_path / "key" / "about.json").read_text())
    assert about == {"what": "a test"}


WRITER = """
import sys, time, pathlib, numpy as np
from fed3r_app.files.row_cache import SparseFileCache, cache_dir
folder, order = pathlib.Path(sys.argv[1]), int(sys.argv[2])
table = np.random.default_rng(1).normal(size=(2000, 64)).astype(np.float32)
rows = np.arange(2000)[::order]
(folder / f"ready{order}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
for chunk in np.array_split(rows, 40):
    SparseFileCache(folder / "key", 64, {}).write(chunk, table[chunk])
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    orders = ("1", "-1")  # from both ends, so that they meet
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), order], cwd=root)
        for order in orders
    ]
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"ready{order}").exists() for order in orders):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    table = np.random.default_rng(1).normal(size=(2000, 64)).astype(np.float32)
    features, found = SparseFileCache(tmp_path / "key", 64, {}).read(np.arange(2000))
    assert found.all() and np.array_equal(features, table)


def test_a_new_cache_is_its_owners_alone_and_an_old_one_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    (tmp_path / "old").chmod(0o755)
    for name, mode in (("new/er", 0o700), ("old", 0o755)):
        monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / name))
        assert S_IMODE(cache_dir().stat().st_mode) == mode
    (tmp_path / "file").touch()
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cache_dir() == tmp_path / "file" / "cache"
