"""A folder that the simulated clients share: bad and missing files, a part held out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.data import registry
from fed3r_app.errors import RunError
from tests.harness.fixtures import app_runs
from tests.harness.grid import SpyGrid
from tests.harness.pixels import EXACT, assert_close, pooled, save_sides
from tests.harness.runs import AppRuns, Outcome

GIVEN = EXACT | {
    "dataset": "imagefolder",
    "partition": "iid",
    "clients-per-round": 0,
    "round-timeout": 20.0,
    "max-retries": 2,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, GIVEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_sides(tmp_path / "images", {"": {"left": 20, "right": 20}})


def again(run: AppRuns, folder: Path, **settings: Any) -> Outcome:
    """Run as a new process would, which lists the folder anew."""
    registry._load_once.cache_clear()
    return run(2, data_path=str(folder), **settings)


def test_a_part_is_held_out_for_the_server(run: AppRuns, folder: Path) -> None:
    outcome = again(run, folder, test_share=0.3)
    dataset: Any = registry.load_dataset("imagefolder", str(folder), 0.3)
    rows = dataset.training_rows
    assert outcome.summary["num_samples"] == len(rows) == 40 - len(dataset.test)
    assert_close(outcome.weights, pooled("imagefolder", str(folder), rows))
    assert outcome.summary["accuracy"] == 1.0


def test_another_share_would_train_on_test_images(run: AppRuns, folder: Path) -> None:
    with pytest.raises(RunError, match="1 of 2 clients"):
        again(
            run,
            folder,
            test_share=0.2,
            max_retries=0,
            round_timeout=1.0,
            silent=lambda client, kind: client == 1 and kind == "train.statistics",
        )
    with pytest.raises(RunError, match=r"test-share must be 0\.2, as in the run"):
        again(run, folder, test_share=0.5, resume=True)
    assert again(run, folder, test_share=0.2, resume=True).completed


def test_bad_test_images_at_the_server_are_counted_and_limited(
    run: AppRuns, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_sides(
        folder / "parts", {"train": {"left": 9, "right": 9}, "test": {"left": 4}}
    )
    bad = folder / "parts" / "test" / "left"
    (bad / "0.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        outcome = again(run, folder / "parts")
    assert outcome.summary["unreadable_test_images"] == 1
    assert outcome.summary["accuracy"] == 1.0
    assert f"Skipped: {bad / '0.png'} must be a readable image" in caplog.text
    (bad / "1.png").write_bytes(b"<html>")
    with pytest.raises(RunError, match=r"server's test set must have at most max-unr"):
        again(run, folder / "parts", run_name="more")


def test_what_is_advised_for_bad_images_works(run: AppRuns, folder: Path) -> None:
    settings: dict[str, Any] = {"partition": "by-class"}
    bad = [folder / "left" / f"{i}.png" for i in range(6)]
    good = bad[0].read_bytes()
    for path in bad:
        path.write_bytes(b"<html>")
    with pytest.raises(RunError, match=r"Put good ones of the same names in their pl"):
        again(run, folder, **settings)
    for path in bad:
        path.unlink()
    with pytest.raises(RunError, match=r"got others: some were added, removed or ren"):
        again(run, folder, resume=True, **settings)
    for path in bad:
        path.write_bytes(good)
    outcome = again(run, folder, resume=True, **settings)
    assert outcome.summary["num_samples"] == 40


def test_a_missing_image_is_reported_before_any_client_works(
    run: AppRuns, folder: Path
) -> None:
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*.png"))]
    lines = [f"{name},{name.parent.name}" for name in [*names, Path("left/gone.png")]]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines]))
    with pytest.raises(
        RunError, match=r"must hold all images.*first is left/gone\.png"
    ):
        again(run, folder)
    assert "train.statistics" not in run.grid.asked


def test_a_node_without_a_part_is_asked_once(run: AppRuns) -> None:
    config = run.config({"dataset": "digits-small"})
    grid = SpyGrid()
    grid.connect(2, {"partition-id": 0}, config)
    with pytest.raises(RunError, match="must give partition-id and num-partitions"):
        run.on(grid, config)
    assert grid.asked == {"query.hello": 1}
