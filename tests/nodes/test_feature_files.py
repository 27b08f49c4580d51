"""Features of a folder whose images come and go: extracted once, never mixed up."""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fed3r_app.cli import main as fed3r
from fed3r_app.data import load_local
from fed3r_app.data.images import OwnImages
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import cached_features, extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.files.row_cache import FilePerRowCache, cache_dir, row_files
from tests.harness.nodes import ALL, CLINICS, Federation
from tests.harness.spies import spy

DIM = 16


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    for number in range(6):
        write(tmp_path / "images" / "cat" / f"{number}.bmp", number)
    return tmp_path / "images"


def write(path: Path, grey: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), grey).save(path)
    os.utime(path, ns=(1, 1))  # as an archive does that keeps no times


@pytest.fixture
def extracted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Note which images are opened."""
    return spy(monkeypatch, OwnImages, "image")


def features(folder: Path, cache: Any) -> Any:
    images = load_local(str(folder)).train
    rows, cpu = np.arange(len(images)), torch.device("cpu")
    backbone = load_backbone(BackboneSpec("pixels", "packaged", 4))
    got = cached_features(backbone, images, rows, device=cpu, cache_dir=cache)
    assert torch.equal(got, extract_features(backbone, images, rows, device=cpu))
    return got


def test_only_new_and_changed_images_are_extracted(
    folder: Path, tmp_path: Path, extracted: Any
) -> None:
    features(folder, tmp_path / "cache")
    (folder / "cat" / "0.bmp").unlink()
    write(folder / "cat" / "9.bmp", 9)
    write(folder / "cat" / "3.bmp", 99)
    os.utime(folder / "cat" / "3.bmp", ns=(2, 2))
    extracted.clear()
    features(folder, tmp_path / "cache")
    opened = [images._paths[index] for images, index, _ in extracted]
    once = [path for path in set(opened) if opened.count(path) == 1]
    assert len(opened) == 8, "six to compare with, two for the cache"
    assert set(opened) - set(once) == {"cat/3.bmp", "cat/9.bmp"}


def test_nodes_that_share_a_cache_don_t_share_images(tmp_path: Path) -> None:
    for name, grey in (("a", 1), ("b", 2)):
        write(tmp_path / name / "cat" / "1.bmp", grey)
    one, other = (features(tmp_path / name, tmp_path / "cache") for name in "ab")
    assert not torch.equal(one, other)


def test_a_damaged_or_foreign_file_counts_as_absent(tmp_path: Path) -> None:
    keys = ["aa11", "aa22", "bb33"]
    cache = FilePerRowCache(tmp_path, DIM, keys)
    values = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    cache.write(np.arange(3), values)
    (tmp_path / "aa" / "aa11").write_bytes(b"no features")
    (tmp_path / "aa" / "aa22").write_bytes(bytes(4 * DIM + 4))
    got, found = cache.read(np.arange(3))
    assert found.tolist() == [False, False, True]
    assert np.array_equal(got[2], values[2])


def test_many_writers_leave_whole_files(tmp_path: Path) -> None:
    keys = [f"{row:04x}" for row in range(40)]
    values = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)

    def work(seed: int) -> None:
        rows = np.random.default_rng(seed).permutation(40)
        FilePerRowCache(tmp_path, DIM, keys).write(rows, values[rows])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got, found = FilePerRowCache(tmp_path, DIM, keys).read(np.arange(40))
    assert found.all()
    assert np.array_equal(got, values)
    assert not list(tmp_path.rglob(".*"))


def test_a_cache_that_can_t_be_written_is_done_without(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where a folder should be")
    features(folder, blocked)
    assert "Rows are not kept" in caplog.text


def cached(federation: Federation) -> int:
    return len([*row_files(cache_dir())])


def test_features_of_deleted_images_leave_the_cache_by_themselves(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    federation.run(ALL)
    assert cached(federation) == sum(map(len, CLINICS.values()))
    gone = next((federation.folder("clinic-b") / "owl").iterdir())
    gone.unlink()
    caplog.set_level("INFO", logger="flwr")
    federation.run(ALL, run_name="again")
    assert cached(federation) == sum(map(len, CLINICS.values())) - 1
    assert (
        "Client clinic-b: removed from the cache, as their images are gone: 1"
        in caplog.text
    )
    digests = sum(len(p.read_bytes()) // 32 for p in cache_dir().glob("digests-*.bin"))
    assert digests == cached(federation)


def test_prune_removes_them_without_a_run_and_says_how_many(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.run(ALL)
    whole = cached(federation)
    shutil.rmtree(federation.folder("clinic-b") / "owl")
    shutil.move(federation.folder("clinic-c"), federation.home / "unmounted")
    capsys.readouterr()
    assert fed3r(["cache", "prune"]) == 0
    said = capsys.readouterr().out
    assert "removed 3 rows of images that are gone" in said
    assert f"kept (--absent-too): {federation.folder('clinic-c')}" in said
    assert str(cache_dir()) in said
    assert cached(federation) == whole - 3
    fed3r(["cache", "prune", "--absent-too"])
    assert "removed 2 rows" in capsys.readouterr().out
    assert cached(federation) == whole - 5
    federation.run(["clinic-a", "clinic-b"], run_name="again")
    assert cached(federation) == whole - 5


def test_a_note_of_images_that_is_damaged_or_hostile_removes_nothing(
    federation: Federation,
) -> None:
    federation.run(ALL)
    whole = cached(federation)
    for note in (cache_dir() / "folders").iterdir():
        note.write_text('{"data-path": 3, "keys": ["../../../../etc"]}')
    federation.run(ALL, run_name="again")
    assert cached(federation) == whole
