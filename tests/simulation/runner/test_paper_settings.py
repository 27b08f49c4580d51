"""The paper's presets: their settings are those of the paper, whatever the defaults."""

import os
import re

import pytest

from docs import settings
from fed3r_app.config import DEFAULTS, Config
from fed3r_app.files.yaml_file import Scalar, read_yaml
from simulation.runner.composition import FOLDER, catalogue
from simulation.runner.experiment import curve_of, load, read_experiment
from simulation.runner.run_grid import ExperimentRun

DATASETS = ("landmarks", "inaturalist", "cifar100")
# As the paper has them, of every run on its data.
PAPER: dict[str, Scalar] = {
    "backbone": "mobilenet_v2",
    "weights": "packaged",
    "image-size": 224,
    "intensity": "range",
    "extract-dtype": "float32",
    "ridge-lambda": 0.01,
    "normalize-classes": True,
    "fit-intercept": False,
    "rf-sigma": "auto",  # the paper's 1000 is of its own features
    "clients-per-round": 10,
    "sampling": "without-replacement",
    "batch-size": 50,
    "weight-decay": 4e-5,
    "server-lr": 1.0,
    "server-momentum": "auto",  # 0.9 with FedAvgM, 0 with the others
    "clip-norm": 0.0,
    "local-prior": False,
    "temperature": 0.1,
    "batch-norm": "train",
    "augment": False,
    "guard": False,
    "probe": False,
    "refit": False,
    "refit-every": 0,
}
# Clients, rounds and local epochs.
FEDERATIONS = {
    "landmarks": (1262, 3000, 5),
    "inaturalist": (9275, 5000, 5),
    "cifar100": (100, 1500, 1),
}
# What an experiment is about.
VARIED = {
    "feature-quality": {"probe"},
    "paper": {"probe"},
    "participation": {"clients-per-round", "sampling"},
    "temperature": {"temperature"},
}
PRESETS = sorted(name for name in catalogue() if name.endswith(DATASETS))
# Sections of the run config that the paper's presets decide as a whole, and the keys in
# them that every experiment chooses.
SECTIONS = ("Features", "Classifier", "Fine-tuning")
CHOSEN = {"method", "rf-dim", "finetune", "optimizer", "rounds"}


def runs_of(name: str) -> tuple[ExperimentRun, ...]:
    return read_experiment(catalogue()[name], data_path=os.getcwd()).all_runs


@pytest.mark.parametrize("name", PRESETS)
def test_the_settings_of_a_preset_are_the_papers(name: str) -> None:
    stem = name.rpartition("-")[0]
    expected = {
        key: value for key, value in PAPER.items() if key not in VARIED.get(stem, ())
    }
    for run in runs_of(name):
        config = run.config
        assert {key: config[key] for key in expected} == expected, run.title
        if config["finetune"] != "none":
            assert config["lr"] == (0.1 if config["method"] == "none" else 0.01)


@pytest.mark.parametrize("dataset", DATASETS)
def test_rounds_and_epochs_are_the_papers(dataset: str) -> None:
    keys = ("rounds", "local-epochs")
    found = {
        (run.clients, *(run.config[key] for key in keys))
        for stem in ("baselines", "ft-variants", "feature-quality")
        for run in runs_of(f"{stem}-{dataset}")
    }
    assert found == {FEDERATIONS[dataset]}


def test_no_default_decides_what_the_paper_says() -> None:
    """A new key must be in the paper's file, or among those that experiments choose."""
    page = settings.render((settings.ROOT / "pyproject.toml").read_text())
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    keys = {
        key
        for section in SECTIONS
        for key in re.findall(r"^\| `([a-z-]+)` \|", sections[section], re.MULTILINE)
    }
    assert CHOSEN <= keys
    pinned = read_yaml(FOLDER / "shared" / "paper.yaml").mapping()["base"].mapping()
    assert keys - CHOSEN <= pinned.keys()
    assert pinned.keys() == {*PAPER, "lr", "local-epochs"}


def test_the_pictures_on_digits_show_the_methods_alone() -> None:
    plain: dict[str, Scalar] = {
        **{"clip-norm": 0.0, "local-prior": False, "guard": False, "refit": False},
        **{"augment": False, "batch-norm": "frozen", "batch-size": 50},
    }
    for name in ("best-digits", "feature-quality-digits"):
        for run in load(name)[0].runs:
            assert {key: run.config[key] for key in plain} == plain
            assert not Config.from_run_config(run.config).refits


# The tables of the paper, in percent.
CLOSED_FORMS = {
    "landmarks": (49.6, 53.9, 56.6, 36.2),
    "inaturalist": (45.1, 46.8, 47.6, 32.2),
    "cifar100": (63.2, 66.2, 67.5, 51.0),
}
# Random start: lp, full; Fed3R start: feat, lp, full.
FINE_TUNED = {
    "landmarks": {
        "FedAvg": (41.0, 57.7, 59.6, 56.7, 64.1),
        "FedAvgM": (40.8, 58.7, 59.0, 56.2, 64.1),
        "Scaffold": (51.7, 63.4, 63.4, 58.0, 67.4),
    },
    "inaturalist": {
        "FedAvg": (36.7, 39.5, 50.8, 42.0, 49.0),
        "FedAvgM": (37.6, 39.3, 51.5, 43.5, 49.8),
    },
}
# Ridge on the features after full from a random start, full and feat from Fed3R.
RIDGE = {
    "landmarks": {"FedAvg": (58.8, 59.6, 62.1), "Scaffold": (57.0, 61.8, 64.3)},
    "inaturalist": {"FedAvg": (53.1, 52.2, 54.6)},
}


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_numbers_beside_ours_are_the_papers(dataset: str) -> None:
    closed = ("Fed3R", "Fed3R-RF 5k", "Fed3R-RF 10k", "FedNCM")
    expected = {
        name: {"accuracy": number}
        for name, number in zip(closed, CLOSED_FORMS[dataset], strict=True)
    }
    for name, numbers in FINE_TUNED.get(dataset, {}).items():
        start = f"Fed3R+{name}"
        rows = [f"{name}-LP", name, f"{start}-FEAT", f"{start}-LP", start]
        for row, number in zip(rows, numbers, strict=True):
            expected[row] = {"accuracy": number}
    for name, ridge in RIDGE.get(dataset, {}).items():
        rows = [name, f"Fed3R+{name}", f"Fed3R+{name}-FEAT"]
        for row, number in zip(rows, ridge, strict=True):
            expected[row]["probe_accuracy"] = number
    (experiment,) = load(f"paper-{dataset}", data_path=os.getcwd())
    assert experiment.paper
    assert experiment.paper.numbers == expected
    # Every row is a curve, and is measured where the paper has measured it.
    assert [*expected] == list(dict.fromkeys(map(curve_of, experiment.runs)))
    for run in experiment.runs:
        assert run.config["probe"] == ("probe_accuracy" in expected[curve_of(run)])


def test_the_small_protocol_is_ours_beside_the_papers_landmarks() -> None:
    (experiment,) = load("paper-cifar100-small", data_path=os.getcwd())
    starts = ("random lp", "random full", "Fed3R feat", "Fed3R lp", "Fed3R full")
    expected = {
        f"optimizer {name.lower()}, {start}": number
        for name, numbers in FINE_TUNED["landmarks"].items()
        for start, number in zip(starts, numbers, strict=True)
    }
    assert experiment.paper and "Landmarks" in experiment.paper.differences[0]
    numbers = experiment.paper.numbers
    assert {row: each["softmax_accuracy"] for row, each in numbers.items()} == expected
    for name, (random, full, feat) in RIDGE["landmarks"].items():
        ridge = {"random full": random, "Fed3R full": full, "Fed3R feat": feat}
        for start, number in ridge.items():
            row = f"optimizer {name.lower()}, {start}"
            assert numbers[row]["probe_accuracy"] == number
    # No test image is used, and no default of training is changed.
    same = ("batch-size", "lr", "temperature", "clip-norm", "guard", "refit", "augment")
    for run in experiment.runs:
        assert run.config["dataset"] == "cifar100-small"
        assert all(run.config[key] == DEFAULTS[key] for key in same)
