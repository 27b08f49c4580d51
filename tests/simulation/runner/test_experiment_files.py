"""Experiment files: what they mean, and what is refused before anything runs."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fed3r_app.files.yaml_file import YamlError
from simulation.__main__ import main
from simulation.runner.composition import FOLDER, Source, catalogue, find
from simulation.runner.experiment import curve_of, load, read_experiment
from simulation.runner.store import Store

Write = Callable[..., Path]
Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
PRESETS = catalogue()
AXES = "axes: {seed: [0, 1]}\n"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    experiment = read_experiment(PRESETS[name], data_path=os.getcwd())
    assert experiment.title
    assert experiment.about
    assert experiment.runs or experiment.coupons


def test_every_preset_has_a_digits_version_which_needs_no_data() -> None:
    stems = {file.stem for file in FOLDER.glob("*.yaml")}
    stems.remove("paper")  # of the paper's data
    assert len(find("*-digits")) == len(stems) == 13
    for stem in stems:
        read_experiment(PRESETS[f"{stem}-digits"])


def test_a_grid_is_the_product_of_its_axes(write: Write) -> None:
    path = write(
        """
        points:
          means: {method: fedncm}
          ridge: {method: fed3r, ridge-lambda: 4e-5}
        axes:
          seed: [0, 1, 2]
          kind: [ridge, means]
        """
    )
    (experiment,) = load(str(path))
    runs = experiment.runs
    assert len(runs) == 6
    assert runs[1].title == "ridge, seed 1"
    assert runs[1].config["seed"] == 1
    assert runs[1].config["ridge-lambda"] == 4e-5
    assert {curve_of(run) for run in runs} == {"ridge", "means"}
    assert runs[0].clients == 10


def test_later_parts_win(write: Write, tmp_path: Path) -> None:
    write("base: {alpha: 1.0, seed: 7, partition: iid}\n", "low", start="")
    write("extends: low.yaml\nbase: {alpha: 2.0}\n", "middle", start="")
    path = write(
        """
        title: t
        extends: middle.yaml
        base: {clients: 3}
        axes: {temperature: [0.1]}
        variants:
          a: {}
          b: {base: {alpha: 3.0}}
        """,
        start="",
    )
    first = read_experiment(Source("x-a", path, "a")).runs[0]
    second = read_experiment(Source("x-b", path, "b")).runs[0]
    assert (first.config["alpha"], second.config["alpha"]) == (2.0, 3.0)
    assert (first.config["seed"], first.config["partition"]) == (7, "iid")
    # A path means the first variant.
    assert find(str(path)) == [Source("x-a", path, "a")]
    assert list(catalogue(tmp_path)) == ["low", "middle", "x-a", "x-b"]


def test_environment_variables_are_filled_in(
    write: Write, monkeypatch: Patch, tmp_path: Path
) -> None:
    text = "dataset: cifar100\n  data-path: ${WHERE}/data\n"
    path = write(f"  {text}{AXES}")
    monkeypatch.delenv("WHERE", raising=False)
    with pytest.raises(YamlError, match="needs the environment variable WHERE"):
        load(str(path))
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("WHERE", str(tmp_path))
    assert load(str(path))[0].runs[0].config["data-path"] == str(tmp_path / "data")


def test_the_path_of_the_data_can_be_given_on_the_command_line(
    write: Write, tmp_path: Path
) -> None:
    path = write(f"  dataset: cifar100\n{AXES}")
    (experiment,) = load(str(path), data_path=str(tmp_path))
    assert experiment.runs[0].config["data-path"] == str(tmp_path)


# What is added to the small experiment of 7 lines, the line of the mistake, the words.
ONE = "axes: {seed: [0]}\n"
PAPER = ONE + "paper: {dataset: D, differences: none, numbers: "
BAD = [
    (f"  imagesize: 8\n{ONE}", 8, r"'imagesize'.*Did you mean 'image-size'"),
    ("axis: {seed: [0]}\n", 8, "'axis'.*Did you mean 'axes'"),
    ("axes: {seed: []}\n", 8, "axes.seed must be a list of at least one.*an empty"),
    ("axes: {}\n", 1, "axes must have at least one axis"),
    ("axes: {seed: 0}\n", 8, "axes.seed must be a list, got 0"),
    ("axes:\n  seed: [0, 1.5]\n", 9, "seed must be a whole number >= 0, got 1.5"),
    (f"  alpha: big\n{ONE}", 8, "alpha must be .*, got 'big'"),
    (f"  rounds: [1]\n{ONE}", 8, "base.rounds must be a text.*got a list"),
    ("axes: {seed: [0, 0]}\n", 8, "axes.seed must not name '0' twice"),
    (f"{ONE}{ONE}", 9, "'axes' is there twice, first.*line 8"),
    ("points:\n  a: {}\n  a: {}\n", 10, "'points.a' is there twice"),
    ("points: {a: {}, b: {}}\naxes: {p: [a, b]}\n", 9, "two runs must not be the same"),
    (f"  dataset: cifar100\n{ONE}", 8, "data-path must name the folder of"),
    (
        f"  dataset: cifar100\n  data-path: /no/such/folder\n{ONE}",
        *(9, "data-path must be an existing folder, got '/no/such/folder'"),
    ),
    ("axes: {sedd: [0]}\n", 8, "'sedd'.*Did you mean 'seed'"),
    ("points: {a: {}}\naxes: {p: [b]}\n", 9, r"names of points \(a\).*got 'b'"),
    ("points: {a: {sed: 1}}\naxes: {p: [a]}\n", 8, "Did you mean 'seed'"),
    (f"  method: none\n{ONE}", 8, "finetune must be full or lp.*Run 'seed 0'"),
    (f"  run-name: x\n{ONE}", 8, "run-name is set by the runner"),
    (f"{ONE}plot: {{panels: split}}\n", 9, r"one of the axes \(seed\)"),
    (f"{ONE}plot: {{figures: [pie]}}\n", 9, r"the figures \(curves; final; kernel\)"),
    (f"{ONE}target: {{accuracy: 2}}\n", 9, "target.baseline is missing"),
    (
        f"{ONE}target: {{accuracy: 2, baseline: all}}\n",
        *(9, "target.accuracy must be a number between 0 and 1, got 2"),
    ),
    (f"{ONE}reference: one\n", 9, "reference must be the name of a point"),
    (f"{ONE}paper: {{dataset: D, numbers: {{}}}}\n", 9, "differences is missing"),
    (f"{PAPER}{{every: {{}}}}}}\n", 9, "'every' is not a key.*Known: all"),
    (f"{PAPER}{{all: {{acuracy: 1}}}}}}\n", 9, "Did you mean 'accuracy'"),
    (f"{PAPER}{{all: {{accuracy: 101}}}}}}\n", 9, "a percentage from 0 to 100, got 1"),
    (f"{PAPER}{{all: {{accuracy: true}}}}}}\n", 9, "a percentage .*, got True"),
    ("axes: {seed: [0]\n", 9, "it must be YAML"),
    (f"extends: none.yaml\n{ONE}", 8, "extends must name a file beside it"),
    (f"extends: x.yaml\n{ONE}", 8, "must not extend itself"),
    (f"  clients: 0\n{ONE}", 8, "is there twice"),
    ("about: &a [*a]\n", 8, "anchor or alias 'a'"),
    ("about: &a x\n", 8, "anchor or alias 'a'"),
    ("about: *a\n", 8, "anchor or alias 'a'"),
    ("about: !!python/object/apply:os.getcwd []\n", 8, "python/object.*not allowed"),
]


@pytest.mark.parametrize(("text", "line", "words"), BAD)
def test_a_mistake_is_answered_with_file_key_and_line(
    write: Write, tmp_path: Path, capsys: Capsys, text: str, line: int, words: str
) -> None:
    path = write(text)
    assert main(["run", str(path), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(f"^{re.escape(str(path))}, line {line}: .*{words}", said), said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_two_files_must_not_have_the_same_name(write: Write, tmp_path: Path) -> None:
    write("variants: {b-c: {}}\n", "a")
    write("variants: {c: {}}\n", "a-b")
    with pytest.raises(YamlError, match="'a-b-c' must be its own"):
        catalogue(tmp_path)


@pytest.mark.parametrize(("dataset", "seeds"), [("digits", 1), ("grocery", 3)])
def test_a_fed3r_start_is_compared_with_a_random_one(dataset: str, seeds: int) -> None:
    for name, split in (("", "by-class"), ("-dirichlet", "dirichlet")):
        (experiment,) = load(f"starts-{dataset}{name}")
        found = {
            tuple(run.config[key] for key in ("optimizer", "method", "finetune"))
            for run in experiment.runs
        }
        starts = [("fed3r", each) for each in ("lp", "feat", "full")]
        starts += [("none", "lp"), ("none", "full")]
        optimizers = ("fedavg", "fedavgm", "scaffold")
        assert found == {(each, *start) for each in optimizers for start in starts}
        assert len(experiment.runs) == 15 * seeds
        assert {run.config["partition"] for run in experiment.runs} == {split}


def test_each_picture_on_photographs_has_a_band_over_seeds() -> None:
    found = load("*-grocery*")
    stems = ("best", "feature-quality", "immunity", "starts", "starts")
    assert tuple(each.source.file.stem for each in found) == stems
    for experiment in found:
        assert {run.config["dataset"] for run in experiment.all_runs} == {"grocery"}
        assert {run.config["seed"] for run in experiment.runs} == {0, 1, 2}
    # The features are those of the runs whose curves are shown.
    best, quality = (
        {run.identity for run in each.runs if run.config["probe"]} for each in found[:2]
    )
    assert best == quality


def test_a_name_that_is_not_known_is_refused(capsys: Capsys) -> None:
    assert main(["show", "immunity-digit"]) == 2
    assert "'immunity-digit' must be an experiment" in capsys.readouterr().err


def test_list_and_show_run_nothing(capsys: Capsys, tmp_path: Path) -> None:
    assert main(["list", "--output", str(tmp_path / "out")]) == 0
    assert "immunity-digits" in capsys.readouterr().out
    assert main(["show", "immunity-digits", "--output", str(tmp_path / "out")]) == 0
    assert "alpha 0, seed 0 [not run]" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_list_counts_the_runs_of_a_folder_of_data(
    capsys: Capsys, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = load("immunity-cifar100", str(tmp_path))[0].all_runs[0]
    directory = Store(out).directory(run)
    directory.path.mkdir(parents=True)
    directory.config_path.write_text(json.dumps(dict(run.config)))
    directory.summary_path.write_text('{"status": "complete"}')

    def counted(*options: str) -> str:
        assert main(["list", "--output", str(out), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if "immunity-cifar100" in line)

    assert " 1 of " in counted("--data-path", str(tmp_path))
    assert " ? of " in counted()


def test_a_closed_form_is_measured_more_than_once_on_every_data_set(
    tmp_path: Path,
) -> None:
    for experiment in load("target-*", str(tmp_path)):
        for run in experiment.all_runs:
            if run.config["finetune"] == "none":
                rounds = -(-run.clients // run.per_round)
                assert rounds / int(run.config["eval-every"]) >= 4, experiment.name
