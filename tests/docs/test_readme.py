"""The README tells the truth about what can be checked by machine."""

import re
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fed3r_app.config import Config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()
DEFAULTS = tomllib.loads(PYPROJECT)["tool"]["flwr"]["app"]["config"]

RUN_CONFIGS = re.findall(r"--run-config '([^'…]+)'", README.replace("\\\n", ""))
RUN_CONFIGS = [text for text in RUN_CONFIGS if "key=value" not in text]
ROWS = re.findall(r"^\| `([a-z-]+)` \| `([^`]*)` \| (.+) \|$", README, re.MULTILINE)


def test_the_table_of_keys_is_that_of_pyproject():
    section = PYPROJECT.split("[tool.flwr.app.config]")[1].split("\n[")[0]
    lines = re.findall(r"^([a-z-]+) = (.+?) +# (.+)$", section, re.MULTILINE)
    assert [key for key, _, _ in lines] == list(DEFAULTS), "a key has no comment"
    assert ROWS == lines


@pytest.mark.parametrize("text", RUN_CONFIGS)
def test_every_run_config_shown_is_valid(text):
    overrides = parse_config_args([text])
    assert overrides.keys() <= DEFAULTS.keys()
    Config.from_run_config({**DEFAULTS, **overrides})


def test_there_are_run_configs_to_check():
    assert len(RUN_CONFIGS) >= 4


@pytest.mark.parametrize("target", re.findall(r"`?make ([a-z-]+)`?", README))
def test_every_make_target_exists(target):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("path", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_every_linked_file_exists(path):
    assert (ROOT / path).exists()
