"""The paper's presets: their settings are those of the paper, whatever the defaults."""

import os
import re

import pytest

from docs import settings
from fed3r_app.config import Config
from simulation.runner.composition import FOLDER, catalogue
from simulation.runner.experiment import load, read_experiment
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.yaml_file import Scalar, read_yaml

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
