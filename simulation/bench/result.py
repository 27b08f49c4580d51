"""What a benchmark returns: tables for people, ratios that are asked for, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simulation.bench.measure import describe_machine
from simulation.tables import Cell, Table


@dataclass(frozen=True)
class Options:
    """How to run a benchmark: quickly, to see that it works, and on which data.

    Without a folder of real client sizes, features and images there are stand-ins.
    """

    quick: bool = False
    data: Path | None = None


@dataclass(frozen=True)
class Ratio:
    """A ratio of two measurements of the same run, and what is asked of it."""

    name: str
    value: float
    wanted: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether it is what is asked; None where nothing is."""
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def row(self) -> tuple[Cell, ...]:
        """Return the ratio as a row of a table."""
        if self.wanted is None:
            return self.name, self.value, "", ""
        sign = "<=" if self.at_most else ">="
        verdict = "yes" if self.met else "NO"
        return self.name, self.value, f"{sign} {self.wanted:g}", verdict


@dataclass(frozen=True)
class Result:
    """Everything a benchmark found out."""

    tables: list[Table]
    ratios: list[Ratio]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the tables, the ratios and the notes."""
        rows = [ratio.row() for ratio in self.ratios]
        ratios = Table("ratios", ("", "measured", "wanted", "met"), rows)
        tables = [*self.tables, *([ratios] if rows else [])]
        return "\n\n".join([*(table.text() for table in tables), *self.notes])

    def save(self, path: Path, name: str, quick: bool) -> None:
        """Write everything as JSON."""
        content: dict[str, Any] = {
            "benchmark": name,
            "quick": quick,
            "machine": describe_machine(),
            "tables": [asdict(table) for table in self.tables],
            "ratios": [{**asdict(r), "met": r.met} for r in self.ratios],
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")
