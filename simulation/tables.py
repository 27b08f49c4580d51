"""The one table: aligned text, Markdown or HTML of what was measured."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

Cell = str | int | float | None
_WIDTH = 88  # of notes


@dataclass(frozen=True)
class Table:
    """A title, headings of columns, rows of cells, and notes below them.

    Numbers are written with three digits, None as a dash. The first ``words`` columns
    hold words, the others numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    words: int = 1
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table with aligned columns."""
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join(self._align(line, widths)).rstrip() for line in lines]
        notes = [
            textwrap.fill(note, _WIDTH, initial_indent="- ", subsequent_indent="  ")
            for note in self.notes
        ]
        return "\n".join([self.title, "", *aligned, *_below(notes)])

    def markdown(self) -> str:
        """Return the table in Markdown."""
        numbers = len(self.columns) - self.words
        rule = "|---" * self.words + "|--:" * numbers + "|"
        lines = [f"| {' | '.join(line)} |" for line in self._lines()]
        below = _below([f"- {note}" for note in self.notes])
        return "\n".join([f"**{self.title}**", "", lines[0], rule, *lines[1:], *below])

    def html(self) -> str:
        """Return the table in HTML."""
        head, *body = [[html.escape(cell) for cell in line] for line in self._lines()]
        heading = "".join(f"<th>{cell}</th>" for cell in head)
        rows = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>\n" for line in body)
        title = f"<caption>{html.escape(self.title)}</caption>"
        notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in self.notes)
        below = f"\n<ul>\n{notes}</ul>" if notes else ""
        return (
            f"<table>{title}\n<thead><tr>{heading}</tr></thead>\n"
            f"<tbody>\n{rows}</tbody></table>{below}"
        )

    def _lines(self) -> list[tuple[str, ...]]:
        return [self.columns, *(tuple(map(_written, row)) for row in self.rows)]

    def _align(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = list(zip(line, widths, strict=True))
        words = [text.ljust(width) for text, width in cells[: self.words]]
        return words + [text.rjust(width) for text, width in cells[self.words :]]


def _below(notes: list[str]) -> list[str]:
    """Return the lines of notes, with an empty line before them."""
    return ["", *notes] if notes else []


def _written(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
