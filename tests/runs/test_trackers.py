"""Trackers: what TensorBoard and Weights & Biases hold is what metrics.jsonl says."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from fed3r_app.cli import main as fed3r
from fed3r_app.runs import trackers
from fed3r_app.runs.report import number_of
from tests.harness.fixtures import _a_run, app_runs
from tests.harness.pixels import EXACT
from tests.harness.runs import AppRuns, Outcome

__all__ = ["_a_run"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    given = EXACT | {"dataset": "digits-small", "clients-per-round": 1}
    return app_runs(tmp_path, monkeypatch, given)


def expected(outcome: Outcome) -> dict[str, dict[int, float]]:
    """Return the points of each number in metrics.jsonl."""
    points: dict[str, dict[int, float]] = {}
    for line in outcome.metrics:
        for name in line.keys() - {"round"}:
            number = number_of(line, name)
            if number is not None:
                points.setdefault(name, {})[line["round"]] = number
    assert {"accuracy", "upload_bytes", "seconds"} <= points.keys()
    return points


def test_tensorboard_has_the_same_numbers_settings_and_picture(run: AppRuns) -> None:
    outcome = run(3, tracker="tensorboard", seed=7)
    events = EventAccumulator(str(outcome.directory))
    events.Reload()
    for name, points in expected(outcome).items():
        read = {event.step: event.value for event in events.Scalars(name)}
        assert read == {step: np.float32(number) for step, number in points.items()}
    (last,) = events.Scalars("summary/accuracy")
    assert last.value == np.float32(outcome.summary["accuracy"])
    (text,) = events.Tensors("config/text_summary")
    settings = text.tensor_proto.string_val[0].decode().strip("`json\n")
    assert json.loads(settings)["seed"] == 7
    (image,) = events.Images("curves")
    with Image.open(outcome.directory / "curves.png") as picture:
        assert (image.width, image.height) == picture.size


def test_a_round_that_is_made_again_is_once_in_tensorboard(run: AppRuns) -> None:
    first = run(3, tracker="tensorboard")
    for path in first.directory.glob("statistics*"):  # all was lost
        path.unlink()
    outcome = run(3, tracker="tensorboard", resume=True)
    assert len(list(outcome.directory.glob("events.*"))) == 2
    events = EventAccumulator(str(outcome.directory))
    events.Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3]


def wandb_records(directory: Path) -> Iterator[Any]:
    """Yield the records in the file of an offline run, a log in LevelDB's format."""
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    data, at, record = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # no header fits into the rest of a block
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)  # type: ignore[attr-defined]
            record = b""


def whole_records(directory: Path) -> list[Any]:
    """Return all records, once the last is there: another process writes them."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        records = list(wandb_records(directory))
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.1)
    raise TimeoutError("The file of the offline run has no end.")


def items(entries: Any) -> dict[str, Any]:
    """Return the pairs of a record."""
    return {
        each.key or "/".join(each.nested_key): json.loads(each.value_json)
        for each in entries
    }


def test_an_offline_run_of_wandb_has_the_same_numbers_settings_and_picture(
    run: AppRuns,
) -> None:
    outcome = run(3, tracker="wandb", seed=7)
    records = whole_records(outcome.directory)
    history: dict[int, dict[str, Any]] = {}
    summary: dict[str, Any] = {}
    for record in records:
        if record.HasField("history"):
            row = items(record.history.item)
            history.setdefault(record.history.step.num, {}).update(row)
        if record.HasField("summary"):
            summary |= items(record.summary.update)
    for name, points in expected(outcome).items():
        assert {s: row[name] for s, row in history.items() if name in row} == points
    (begun,) = [record.run for record in records if record.HasField("run")][:1]
    settings = items(begun.config.update)
    assert settings["seed"] == 7 and settings["dataset"] == "digits-small"
    assert begun.host == "" and begun.display_name == "it" and begun.project == "fed3r"
    assert summary["accuracy"] == outcome.summary["accuracy"]
    (picture,) = outcome.directory.glob("wandb/offline-run-*/files/media/images/*.png")
    assert picture.read_bytes() == (outcome.directory / "curves.png").read_bytes()


def test_without_a_tracker_nothing_is_imported(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)  # its import is an error
    assert run(2).completed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wandb", "got 'wandb': pip install wandb"),
        ("wanbd", "must be '' or 'tensorboard' or 'wandb', got 'wanbd'"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: AppRuns,
    name: str,
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert fed3r(["simulate", "--clients", "2", f"tracker={name}"]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    with pytest.raises(RuntimeError, match="tracker must be"):
        run(2, tracker=name)
    assert not (tmp_path / "runs").exists()


class Own:
    """A tracker of a user's own, which breaks down in the second round."""

    package = "json"
    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, run: Any, settings: Any) -> None:
        self.seen[:] = [settings["seed"]]

    def log(self, numbers: Any, round: int) -> None:
        self.seen.append((round, numbers["accuracy"]))
        if round == 2:
            raise OSError("the line is down")

    def finish(self, numbers: Any, picture: Path, round: int) -> None:
        self.seen.append(picture)

    def close(self) -> None:
        self.seen.append("closed")


def test_a_tracker_of_ones_own_is_a_class_and_no_danger_to_the_run(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "own", Own)
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "propagate", True)
    outcome = run(3, tracker="own", seed=5)
    accuracies = [line["accuracy"] for line in outcome.metrics]
    assert Own.seen == [5, (1, accuracies[0]), (2, accuracies[1])]
    assert len(accuracies) == 3 and outcome.summary["accuracy"] == accuracies[2]
    assert "tracker = 'own' gets no more: the line is down" in caplog.text


def test_a_tracker_is_closed_whatever_ends_the_run(
    run: AppRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "own", Own)
    with pytest.raises(RuntimeError):
        run(2, tracker="own", wait_for=3, round_timeout=0.5)
    assert Own.seen == [0, "closed"]
