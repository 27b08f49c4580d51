"""Writes settings.md from the table of run-config keys in pyproject.toml.

The comments of ``[tool.flwr.app.config]`` are the descriptions, its comment lines the
headings: the page says nothing of its own. Run ``python docs/settings.py`` after a
change of that table; a test compares the page with it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
_HEADER = """\
# All settings

<!-- Written by docs/settings.py from pyproject.toml. Do not edit. -->

Every run-config key with its default value. Change it by `fed3r simulate key=value` or
`fed3r run HOST:PORT key=value`, or in a file for `--config`. There a text may stand
without quotation marks; for Flower's own `flwr run`, `--run-config 'key=value
key2="text"'`, it takes double ones. A key that is not in this table is refused, and so
is a value that contradicts another one: the message names both.
"""
# key = default  # description
_KEY = re.compile(r"^([a-z-]+) = (.+?) +# (.+)$")


def render(pyproject: str) -> str:
    """Return the page for the text of a pyproject.toml."""
    table = pyproject.split("[tool.flwr.app.config]\n")[1].split("\n[")[0]
    lines = [_HEADER]
    for line in table.strip().splitlines():
        if line.startswith("# "):
            lines += [
                f"\n## {line[2:]}\n",
                "| key | default | meaning |",
                "|---|---|---|",
            ]
        elif found := _KEY.match(line):
            key, default, meaning = found.groups()
            lines.append(
                f"| `{key}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |"
            )
        else:
            raise ValueError(f"A run-config key must have a comment, got {line!r}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render((ROOT / "pyproject.toml").read_text()))
