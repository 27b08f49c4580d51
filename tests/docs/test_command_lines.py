"""Every command in the documents is one that its program accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from simulation.runner.composition import catalogue
from simulation.runner.experiment import load
from tests.docs.command_lines import parse
from tests.docs.markdown import PAGES, ROOT, blocks, code_spans, commands

LINES = sorted({shlex.join(line) for page in PAGES.values() for line in commands(page)})
# Without their arguments: `fed3r forget`, `flwr supernode unregister`, …
SPANS = sorted(
    {
        span
        for page in PAGES.values()
        for span in code_spans(page)
        if re.match(r"(fed3r|flwr|flower-\w+|python -m simulation) [a-z-]", span)
    }
)
GONE = {"python -m simulation compare-starts"}
EXPERIMENTS = PAGES["docs/experiments.md"]


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_is_accepted(line: str) -> None:
    words = shlex.split(line)
    for at, word in enumerate(words):
        if word == "--file":  # docker compose
            assert (ROOT / words[at + 1]).is_file()
    parse(words)


@pytest.mark.parametrize("span", [span for span in SPANS if span not in GONE])
def test_every_command_that_is_named_exists(
    span: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(span)
    options = [word for word in words if word.startswith("--")]
    # Only the command: a text may name an option without its value.
    command = words[: words.index(options[0])] if options else words
    with pytest.raises(SystemExit) as ended:
        parse([*command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in options)


@pytest.mark.parametrize(
    "line", ["fed3r simulate metod=fedncm", "fed3r run HOST:1 partition=natural"]
)
def test_settings_of_a_command_are_checked(line: str) -> None:
    with pytest.raises(ValueError, match=r"metod|partition"):
        parse(shlex.split(line))


def test_there_are_commands_to_check() -> None:
    assert sum(line.startswith("fed3r simulate") for line in LINES) >= 8
    assert sum(line.startswith("fed3r ") for line in LINES) >= 20
    assert len(SPANS) >= 10


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.startswith("fed3r experiments run")]
)
def test_every_experiment_that_is_run_exists(line: str) -> None:
    names = shlex.split(line.split(" --")[0])[3:]
    for name in names:
        if name != "experiments/x.yaml":
            assert load(name, data_path=str(ROOT))


def test_the_page_lists_every_experiment() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| .+ \| (?:yes|no) \|", EXPERIMENTS, re.M)
    assert sorted(rows) == sorted({source.file.stem for source in catalogue().values()})


def test_the_yaml_block_is_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(blocks(EXPERIMENTS, "yaml")[0])
    (experiment,) = load(str(tmp_path / "x.yaml"))
    assert len(experiment.runs) == 18
