"""`fed3r simulate`: what it runs, and what it refuses before anything is started."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fed3r_app.cli import main

Capsys = pytest.CaptureFixture[str]
PIXELS = ("backbone=pixels", "image-size=8")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FED3R_OUTPUT_DIR", raising=False)
    return tmp_path


def simulate(*words: str) -> int:
    return main(["simulate", *words])


def latest(name: str) -> Any:
    return json.loads(Path("results", "latest", name).read_text())


def test_it_runs_what_it_is_told() -> None:
    words = ("--clients", "4", "method", "=", "fedncm", "partition=dirichlet")
    assert simulate(*words, *PIXELS, "alpha=0.1") == 0
    summary, config = latest("summary.json"), latest("config.json")
    assert (summary["method"], summary["clients"]) == ("fedncm", 4)
    assert (config["partition"], config["alpha"]) == ("dirichlet", 0.1)


def test_a_run_is_repeated_from_its_own_config() -> None:
    given = ("--clients", "3", "run-name=first", "partition=iid", *PIXELS)
    assert simulate(*given, "dataset=digits-small") == 0
    summary, config = latest("summary.json"), latest("config.json")
    assert simulate("--config", "results/first/config.json") == 0
    name = Path("results/latest").resolve().name
    assert latest("config.json") == config | {"run-name": name}
    for key in ("clients", "accuracy", "ridge_lambda"):
        assert latest("summary.json")[key] == summary[key]
    assert simulate("--config", "results/first/config.json", "method=lda") == 0
    assert latest("summary.json")["method"] == "lda"


@pytest.mark.parametrize(
    ("words", "clients"),
    [
        ("dataset=digits partition=by-class", 10),
        ("dataset=synthetic:classes=5,clients=7,features=8 partition=natural", 7),
        ("dataset=synthetic:classes=5,clients=7,features=8 partition=by-class", 5),
        ("dataset=synthetic:classes=5,clients=7,features=8 partition=iid", 10),
    ],
)
def test_without_a_number_there_are_as_many_clients_as_one_expects(
    words: str, clients: int
) -> None:
    backbone = ("backbone=none",) if "synthetic" in words else PIXELS
    assert simulate(words, *backbone, "clients-per-round=0") == 0
    assert latest("summary.json")["clients"] == clients


REFUSED = [
    ("metod=fedncm", "Did you mean 'method'"),
    ("alpha 0.1", "Did you mean alpha=0.1"),
    ("partition=natural", "dataset = 'digits', got 'natural': it has no natural"),
    ("dataset=synthetic backbone=none partition=natural --clients 3", "must be 100,"),
    ("dataset=imagefolder", "data-path must name the folder of"),
    (
        "dataset=cifar10 data-path=/nowhere",
        "must be an existing folder, got '/nowhere'",
    ),
    ("dataset=local", "which is for real nodes"),
    ("partition=dirichlet --clients 2000", "must be <= 1442, the number of training"),
    ("wait-for=11", "wait-for must be <= 10, the number of clients"),
    ("min-clients=11", "min-clients must be <= 10, the number of clients"),
    ("privacy=secagg --clients 2", "number of clients must be >= 3 with privacy"),
    ("backbone=resnet5", "Did you mean 'resnet50'"),
    ("weights=nowhere.pt", "or an existing file, got 'nowhere.pt'"),
    ("weights=other.json", "weights must be a file made by torch.save or safetensors"),
    ("device=quantum", "device must be auto, cpu, cuda"),
    ("run-name=a/b", "run-name must be a plain folder name"),
    ("run-name=x resume=true", "must hold a run when resume = true"),
    ("--cpus-per-client 2", "must go with --engine ray"),
    ("--engine ray --gpus-per-client -1", "--gpus-per-client must be >= 0"),
    ("--clients 0", "number of clients must be >= 1, got 0"),
    ("--config nowhere.toml", "--config must be a file, got no nowhere.toml"),
    ("--config other.json", "other.json: Run-config key 'accuracy' is not known"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_cannot_be_right_is_refused_in_one_sentence(
    words: str, sentence: str, capsys: Capsys, own_folder: Path
) -> None:
    Path("other.json").write_text('{"accuracy": 0.9}')
    assert simulate(*words.split()) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert not Path("results").exists()
    assert not Path(".flwr").exists()


def test_what_fails_at_a_client_is_logged_once(capsys: Capsys) -> None:
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(6):
            Path("photos", name, f"{number}.jpg").write_text(f"no image {number}")
    settings = ("dataset=imagefolder", "data-path=photos", "partition=iid", *PIXELS)
    assert simulate(*settings, "--clients", "2") == 1
    said = capsys.readouterr()
    assert said.out.count("Client 0 must have at most max-unreadable") == 1
    assert "0 of 2 clients were counted" in said.err
    assert "What was counted" not in said.err and "To ask again, run" in said.err


def test_a_run_that_fails_ends_with_1(capsys: Capsys) -> None:
    assert simulate("dataset=digits-small", *PIXELS, "max-client-samples=10") == 1
    assert "max-client-samples" in capsys.readouterr().err
    assert not Path("results", "latest", "summary.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["metod=fedncm"],
        ["method", "=", "fedncm", "nonsense"],
        ["partition=natural"],
        ["--config", "results/summary.json"],
    ],
)
def test_a_refusal_takes_less_than_3_seconds_and_no_torch(
    words: list[str], own_folder: Path
) -> None:
    Path("results").mkdir()
    Path("results/summary.json").write_text('{"format": 2, "accuracy": 0.9}')
    program = (
        "import sys; from fed3r_app.cli import main; code = main(sys.argv[1:])\n"
        "assert not {'torch', 'ray', 'flwr'} & set(sys.modules); sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", program, "simulate", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 3
