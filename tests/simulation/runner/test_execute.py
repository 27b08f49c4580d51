"""The runner: what it leaves, what it skips, and what happens when a run fails."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from fed3r_app.core import RidgeStatistics, select_lambda
from fed3r_app.data import load_dataset
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from simulation.__main__ import main
from simulation.analyses.kernel_comparison import Line
from simulation.runner.analyses import analyses_wanted, read_lines
from simulation.runner.collect import Results, collect, known_values, measured
from simulation.runner.experiment import load
from simulation.runner.outcome_tables import kernel_table, percent, tables_of
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import DONE, NEW, Store, run_name

Write = Callable[..., Path]
Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
SPLITS = """
base: {backbone: pixels, image-size: 8, clients: 10, clients-per-round: 5,
       upload-dtype: float64, partition: dirichlet, eval-every: 1}
title: splits
points:
  centralised: {clients: 1}
reference: centralised
axes:
  alpha: [0, 0.1, 1000]
  seed: [0, 1]
target: {accuracy: 0.5, baseline: alpha 0}
paper:
  dataset: Clocks
  numbers: {alpha 0.1: {accuracy: 63}}
  differences: [Clocks are round & digits < 10.]
"""


Done = tuple[Path, Path]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """An experiment that was run once, by the command."""
    root = tmp_path_factory.mktemp("done")
    path = root / "splits.yaml"
    path.write_text(SPLITS)
    with Patch.context() as patch:
        patch.setenv("FED3R_CACHE_DIR", str(root / "cache"))
        assert main(["run", str(path), "--output", str(root / "out")]) == 0
        yield path, root / "out"


def test_all_splits_end_at_the_same_accuracy_to_the_last_digit(done: Done) -> None:
    path, out = done
    results = collect(load(str(path))[0], Store(out))
    assert len(results.finished) == 6
    accuracies = {each.measure("accuracy") for each in results.finished}
    assert results.reference is not None
    assert accuracies == {results.reference.measure("accuracy")}
    assert accuracies == {pooled_accuracy()}
    # Not so on the way there.
    first = {measured(each)[0, 0] for each in results.finished}
    assert len(first) > 1


def pooled_accuracy() -> float:
    """Solve the ridge regression of all images at once, with NumPy's solver."""
    digits, cpu = load_dataset("digits", ""), torch.device("cpu")
    assert digits.train is not None and digits.test is not None
    backbone = load_backbone(BackboneSpec("pixels", "packaged", 8))
    train, test = (
        extract_features(backbone, images, np.arange(len(images)), device=cpu).double()
        for images in (digits.train, digits.test)
    )
    labels = torch.from_numpy(digits.train.labels.copy())
    lam = select_lambda(RidgeStatistics.of(train, labels, 10))
    Z, Y = train.numpy(), np.eye(10)[digits.train.labels]
    W = np.linalg.solve(Z.T @ Z + lam * np.eye(Z.shape[1]), Z.T @ Y)
    W /= np.linalg.norm(W, axis=0)
    return float(((test.numpy() @ W).argmax(axis=1) == digits.test.labels).mean())


def test_the_tables_hold_one_row_for_each_run(done: Done) -> None:
    _, out = done
    with (out / "splits" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = (out / "splits" / "results.jsonl").read_text().splitlines()
    assert len(rows) == len(lines) == 7
    assert [row["run"] for row in rows] == [json.loads(line)["run"] for line in lines]
    for row in rows[:6]:
        assert row["status"] == "complete"
        assert int(row["upload_bytes"]) > 0
        summary = json.loads((out / "runs" / row["run"] / "summary.json").read_text())
        assert float(row["accuracy"]) == summary["accuracy"]


def test_the_report_is_one_page_that_needs_no_other_file(done: Done) -> None:
    _, out = done
    page = (out / "splits" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("data:image/png;base64,") == 1
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "To an accuracy of 50 %" in page
    assert "centralised" in page
    assert "<th>accuracy, paper (Clocks)</th>" in page
    assert "<li>Clocks are round &amp; digits &lt; 10.</li>" in page
    assert f"<td>flwr</td><td>{version('flwr')}</td>" in page
    assert (out / "splits" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_our_accuracies_stand_beside_the_papers(done: Done, capsys: Capsys) -> None:
    path, out = done
    results = collect(load(str(path))[0], Store(out))
    (name, theirs, ours) = tables_of(results)[-1].rows[1]
    assert (name, theirs) == ("alpha 0.1", "63.0")
    assert ours == percent(known_values(results.finished[2:4], "accuracy"))
    arguments = [str(path), "--output", str(out)]
    assert main(["table", *arguments]) == 0
    assert "\n- Clocks are round & digits < 10.\n" in capsys.readouterr().out
    assert main(["table", *arguments, "--markdown"]) == 0
    said = capsys.readouterr().out
    assert f"| alpha 0.1 | 63.0 | {ours} |" in said
    assert "\n\n- Clocks are round & digits < 10.\n" in said
    assert said.strip() == (out / "splits" / "tables.md").read_text().strip()


def test_what_is_done_is_skipped(done: Done, capsys: Capsys) -> None:
    path, out = done
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*")}
    assert main(["run", str(path), "--output", str(out)]) == 0
    assert "7 of 7 runs done already" in capsys.readouterr().out
    assert before == {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*")}


def test_a_run_with_other_settings_is_another_run(done: Done, tmp_path: Path) -> None:
    _, out = done
    path = tmp_path / "splits.yaml"
    path.write_text(SPLITS.replace("pixels,", "pixels, ridge-lambda: 2.0,"))
    (experiment,) = load(str(path))
    assert not any(Store(out).state(run) == DONE for run in experiment.runs)


def test_tables_and_pictures_can_be_made_again(
    done: Done, capsys: Capsys, tmp_path: Path
) -> None:
    path, out = done
    picture = (out / "splits" / "curves.png").read_bytes()
    arguments = [str(path), "--output", str(out)]
    assert main(["table", *arguments, "--markdown"]) == 0
    assert "| alpha 0.1 |" in capsys.readouterr().out
    assert main(["plot", *arguments, "--to", str(tmp_path)]) == 0
    assert (tmp_path / "splits-curves.png").read_bytes() == picture


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_can_be_vectors_and_the_page_keeps_its_own(
    done: Done, tmp_path: Path, form: str, begins: bytes
) -> None:
    path, out = done
    page = (out / "splits" / "report.html").read_bytes()
    arguments = ["plot", str(path), "--output", str(out), "--format", form]
    drawn = []
    for _ in range(2):
        assert main([*arguments, "--to", str(tmp_path)]) == 0
        drawn.append((tmp_path / f"splits-curves.{form}").read_bytes())
    assert drawn[0] == drawn[1] and drawn[0].startswith(begins)
    assert (out / "splits" / "report.html").read_bytes() == page


def test_another_runner_in_the_same_folder_is_refused(
    done: Done, capsys: Capsys
) -> None:
    path, out = done
    with Store(out).claimed():
        assert main(["run", str(path), "--output", str(out)]) == 2
    assert "Another run of experiments is at work" in capsys.readouterr().err


def test_the_others_are_run_when_one_fails(
    write: Write, tmp_path: Path, capsys: Capsys
) -> None:
    path = write(
        """
        points:
          sound: {}
          broken: {backbone: resnet99}
          tuned: {finetune: lp, rounds: 3, eval-every: 1}
        axes:
          kind: [broken, sound, tuned]
        """
    )
    out = tmp_path / "out"
    assert main(["run", str(path), "--output", str(out), "--jobs", "1"]) == 1
    said = capsys.readouterr()
    assert re.search(r"broken: .*resnet99", said.err)
    assert "Traceback" not in said.err + said.out
    assert "1 of 3 runs missing: broken." in (out / "x/report.html").read_text()
    assert main(["table", str(path), "--output", str(out)]) == 1
    _fine_tuning_adds_its_costs(collect(load(str(path))[0], Store(out)))


def _fine_tuning_adds_its_costs(results: Results) -> None:
    """Both phases start alike; the costs of the second come on top of the first."""
    closed, tuned = (measured(each) for each in results.finished)
    assert np.array_equal(tuned[: len(closed)], closed)
    assert (np.diff(tuned[:, 1:], axis=0) > 0).all()
    assert len(tuned) == len(closed) + 3


def test_only_a_fine_tuning_is_resumed_where_it_stopped(
    write: Write, tmp_path: Path
) -> None:
    path = write("axes: {seed: [0]}\n")
    store, run = Store(tmp_path / "out"), load(str(path))[0].runs[0]
    directory = store.directory(run)
    for left, resumed in (
        (directory.statistics_path, False),
        (directory.checkpoint_path, True),
    ):
        directory.path.mkdir(parents=True)
        left.touch()
        assert store.prepare(run) is resumed
        assert left.exists() is resumed


def pretend_done(store: Store, runs: Iterable[ExperimentRun]) -> None:
    for run in runs:
        directory = store.directory(run)
        directory.path.mkdir(parents=True)
        directory.config_path.write_text(json.dumps(dict(run.config)))
        directory.summary_path.write_text('{"status": "complete"}')


def test_a_changed_file_of_weights_makes_another_run(
    write: Write, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.pt"
    path = write(f"axes: {{weights: [packaged, {weights}]}}\n")
    store, runs = Store(tmp_path / "out"), load(str(path))[0].runs
    weights.write_bytes(b"first")
    pretend_done(store, runs)
    assert [store.state(run) for run in runs] == [DONE, DONE]
    weights.write_bytes(b"second")
    assert [store.state(run) for run in runs] == [DONE, NEW]
    weights.write_bytes(b"first")
    assert [store.state(run) for run in runs] == [DONE, DONE]


def test_another_recipe_of_the_features_makes_another_run(
    write: Write, monkeypatch: Patch
) -> None:
    run = load(str(write("axes: {seed: [0]}\n")))[0].runs[0]
    name = run_name(run)
    monkeypatch.setattr("simulation.runner.store.RECIPE_VERSION", 99)
    assert run_name(run) != name


def test_kernels_of_several_seeds_are_one_line(
    write: Write, tmp_path: Path, monkeypatch: Patch
) -> None:
    path = write(
        """
        axes: {method: [fed3r, fedncm], seed: [0, 1]}
        kernel: {per-class: 4, dims: [10, 20], seeds: 2}
        """
    )
    store, (experiment,) = Store(tmp_path / "out"), load(str(path))
    pretend_done(store, experiment.runs)
    monkeypatch.setattr(
        "simulation.analyses.kernel_comparison.compare_with_kernel",
        lambda directory, *_: [
            Line(dim, (0.25 if "seed0" in directory.name else 0.75,))
            for dim in (10, 20, None)
        ],
    )
    (task,) = analyses_wanted(experiment, store)
    task.execute(ExitStack(), lambda done, total: None)
    lines = read_lines(experiment, store)
    assert lines is not None
    methods = ("method fed3r", "method fedncm")
    assert [tuple(line.values()) for line in lines] == [
        (method, dim, [0.25, 0.75]) for method in methods for dim in (10, 20, None)
    ]
    assert len(kernel_table(lines).rows) == 6
