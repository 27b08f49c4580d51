"""The documents tell the truth about what can be checked by machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs import settings
from fed3r_app.config import check_setting
from fed3r_app.config.text import parse_settings
from tests.docs.markdown import (
    FILES,
    PAGES,
    ROOT,
    anchors,
    blocks,
    code_spans,
    commands,
    links,
)

PYPROJECT = (ROOT / "pyproject.toml").read_text()
DEFAULTS = tomllib.loads(PYPROJECT)["tool"]["flwr"]["app"]["config"]
TEXT = "\n".join(PAGES.values())
# key=value …, as commands take it
SETTINGS = sorted(
    {
        span
        for span in code_spans(TEXT)
        if re.match(r"[a-z-]+=\S", span) and "key=" not in span
    }
)
CODE_PATH = re.compile(
    r"(?:fed3r_app|strategies|clients|simulation|tests|docs|docker)/[\w./-]+\w"
)


@pytest.mark.parametrize(
    ("name", "most"),
    [("README.md", 160), ("simulation/README.md", 120), ("docker/README.md", 120)],
)
def test_a_readme_is_short(name: str, most: int) -> None:
    assert len(PAGES[name].splitlines()) <= most


def test_the_settings_page_is_current() -> None:
    assert settings.PAGE.read_text() == settings.render(PYPROJECT), (
        "run python docs/settings.py"
    )


def test_the_settings_page_has_every_key() -> None:
    keys = re.findall(r"^\| `([a-z-]+)` \|", settings.render(PYPROJECT), re.MULTILINE)
    assert keys == list(DEFAULTS)


@pytest.mark.parametrize("text", SETTINGS)
def test_every_setting_shown_exists_and_may_have_that_value(text: str) -> None:
    for key, value in parse_settings([text]).items():
        check_setting(key, value)


def test_there_are_settings_to_check() -> None:
    assert len(SETTINGS) >= 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_has_its_file_and_heading(file: Path) -> None:
    for path, anchor in links(file.read_text()):
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), path
        if anchor:
            found = anchors(target.read_text())
            assert anchor in found, f"{path}#{anchor}"


def test_every_file_of_the_project_that_is_named_exists() -> None:
    named = {span for span in code_spans(TEXT) if CODE_PATH.fullmatch(span)}
    assert not [path for path in named if not (ROOT / path).exists()]
    assert len(named) >= 10


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        words[1]
        for words in [
            *(line for page in PAGES.values() for line in commands(page)),
            *(span.split() for span in code_spans(TEXT)),
        ]
        if words[0] == "make" and len(words) > 1
    }
    assert {"run", "test", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_python_block_runs(tmp_path: Path) -> None:
    # In one process, because imports take longer than all blocks together; a page's
    # blocks follow one another, pages know nothing of each other.
    code = {
        name: "\n".join(found)
        for name, page in PAGES.items()
        if (found := blocks(page, "python"))
    }
    assert len(code) >= 4
    # Pages that add to the registries come last.
    pages = sorted(code.items(), key=lambda item: "extending" in item[0])
    program = f"for name, code in {pages!r}: exec(compile(code, name, 'exec'), {{}})"
    environment = {"PYTHONPATH": str(ROOT), "FED3R_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
