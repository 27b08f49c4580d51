"""Every picture of the documents is made by a command that exists."""

import re
import shlex

import pytest

from simulation.runner.composition import catalogue
from tests.docs.command_lines import parse
from tests.docs.markdown import PAGES, ROOT, code_spans

ROWS = {
    name: code_spans(made_by)
    for name, made_by in re.findall(
        r"^\| `([\w.-]+\.png)` \| (.+) \|$", PAGES["docs/experiments.md"], re.MULTILINE
    )
}


def test_the_table_has_every_picture_there_is() -> None:
    assert sorted(ROWS) == sorted(path.name for path in ROOT.glob("docs/images/*"))


@pytest.mark.parametrize("name", ROWS)
def test_a_picture_is_made_by_commands_that_exist(name: str) -> None:
    commands = [shlex.split(span) for span in ROWS[name]]
    assert commands
    for words in commands:
        if words[0] == "make":
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
        elif words[:2] == ["python", "docs/screenshot.py"]:
            assert (ROOT / words[1]).is_file()
        else:
            assert parse(words)
        if words[:3] == ["fed3r", "experiments", "run"]:
            assert words[3] in catalogue() and name.startswith(words[3])
