"""What the documents hold: their blocks, commands, code spans and links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / name for name in ("simulation/README.md", "docker/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
_BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, *languages: str) -> list[str]:
    """Return the code blocks of a page in some languages, in order."""
    return [code for language, code in _BLOCK.findall(page) if language in languages]


def commands(page: str) -> list[list[str]]:
    """Return the command lines of the console blocks of a page, split as by a shell."""
    text = "".join(blocks(page, "console", "bash")).replace("\\\n", "")
    lines = (shlex.split(line, comments=True) for line in text.splitlines())
    return [line for line in lines if line]


def code_spans(page: str) -> list[str]:
    """Return what stands between single backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", page))


def links(page: str) -> list[tuple[str, str]]:
    """Return the relative links of a page: file, which may be empty, and anchor."""
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", _BLOCK.sub("", page))
    return [(str(path), str(anchor)) for path, anchor in found]


def anchors(page: str) -> list[str]:
    """Return the anchors of the headings of a page, as MkDocs and GitHub make them."""
    found = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page), re.MULTILINE)
    return [re.sub(r"[^\w\s-]", "", text).lower().replace(" ", "-") for text in found]
