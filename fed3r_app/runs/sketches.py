"""The sketches of the contributions in a run's statistics, in a file of JSON lines.

Its first line holds the run's secret, without which nobody can make another
contribution with the same sketch: only its owner can read the file.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fed3r_app.core import Contribution, Sketch, SketchVectors
from fed3r_app.core.sketch import SECRET_BYTES
from fed3r_app.files import append_lines, line_of, read_lines, write_atomically
from fed3r_app.runs.formats import check_format, header

_OWNER_ONLY = 0o600
_KEYS = {"client", "digest", "counts", "of_A", "of_b"}


class SketchBook:
    """The sketches in a file, which the first of them makes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._vectors: SketchVectors | None = None
        self._unsaved: list[dict[str, Any]] = []

    def add(
        self,
        client: str,
        digest: str,
        contribution: Contribution,
        class_names: Sequence[str],
    ) -> None:
        """Keep the sketch of a contribution whose labels index ``class_names``.

        It is in the file after `save`, which comes before the statistics are saved.
        """
        sketch = self.sketch(contribution, class_names)
        self._unsaved.append({"client": client, "digest": digest, **vars(sketch)})

    def sketch(self, contribution: Contribution, class_names: Sequence[str]) -> Sketch:
        """Return the sketch of a contribution, with the vectors of the run."""
        if self._vectors is None:
            secret = bytes.fromhex(str(self._header["secret"]))
            self._vectors = SketchVectors(secret, contribution.d)
        return self._vectors.sketch(contribution, class_names)

    def find(self, client: str, digest: str) -> Sketch | None:
        """Return the sketch of a client's contribution, where there is one."""
        for line in reversed(self._lines()):
            if _is_of(line, {client: digest}):
                return Sketch(line["counts"], tuple(line["of_A"]), tuple(line["of_b"]))
        return None

    def leftover(self, contributions: Mapping[str, str]) -> list[str]:
        """Return whose sketches are of none of the contributions (client: digest)."""
        lines = self._lines()
        return [x["client"] for x in lines if not _is_of(x, contributions)]

    def keep_only(self, contributions: Mapping[str, str]) -> None:
        """Drop all sketches but those of the contributions (client: digest) given."""
        if self.leftover(contributions):
            wanted = [x for x in self._lines() if _is_of(x, contributions)]
            text = "".join(map(line_of, [self._header, *wanted]))
            write_atomically(self._path, text.encode(), mode=_OWNER_ONLY)

    def save(self) -> None:
        """Put on the disk what was added."""
        if self._unsaved:
            append_lines(self._path, self._unsaved, self._header, _OWNER_ONLY)
            self._unsaved = []
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    @cached_property
    def _header(self) -> dict[str, object]:
        """The first line: that of the file, or a new one with a new secret."""
        if not (lines := read_lines(self._path)):
            return {**header("sketches"), "secret": secrets.token_hex(SECRET_BYTES)}
        check_format(self._path, lines[0])
        if not re.fullmatch("([0-9a-f]{2})+", str(lines[0].get("secret"))):
            raise ValueError(
                f"{self._path} must begin with the secret of its sketches, got another "
                "line. The file is damaged: move it away, and what a client sends to "
                "be forgotten is known by its digest alone."
            )
        return lines[0]

    def _lines(self) -> list[dict[str, Any]]:
        lines = read_lines(self._path)[1:]
        if any(line.keys() != _KEYS for line in lines):
            raise ValueError(
                f"{self._path} must hold sketches, got other lines. The file is "
                "damaged: move it away, and what a client sends to be forgotten is "
                "known by its digest alone."
            )
        return lines


def _is_of(line: Mapping[str, Any], contributions: Mapping[str, str]) -> bool:
    return bool(contributions.get(line["client"]) == line["digest"])
