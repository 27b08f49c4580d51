"""What a benchmark finds out: tables for people, ratios that are asked for, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from simulation.bench.measure import Measured, announce, describe_machine, measure
from simulation.tables import Cell, Table


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


@dataclass
class Result:
    """How to run a benchmark, and everything it finds out.

    Quickly: small sizes, to see that it works. Without a folder of real client sizes,
    features and images there are stand-ins.
    """

    quick: bool = False
    data: Path | None = None
    tables: list[Table] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(
        self, step: str, function: Callable[..., Any], *arguments: Any
    ) -> Measured:
        """Return what a call took of a function that a module has.

        Unless it is to be quick, in a fresh process, whose peak memory is its own; that
        takes seconds to start.
        """
        announce(step)
        if self.quick:
            return measure(function, *arguments)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measure, function, *arguments).result()

    def table(
        self, title: str, columns: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]
    ) -> None:
        """Add a table."""
        self.tables.append(Table(title, columns, list(rows)))

    def ratio(
        self,
        name: str,
        value: float,
        wanted: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Add a ratio, and what is asked of it."""
        self.ratios.append(Ratio(name, value, wanted, at_most))

    def __str__(self) -> str:
        """Return the tables, the ratios and the notes."""
        rows = [ratio.row() for ratio in self.ratios]
        ratios = Table("ratios", ("", "measured", "wanted", "met"), rows)
        tables = [*self.tables, *([ratios] if rows else [])]
        return "\n\n".join([*(table.text() for table in tables), *self.notes])

    def save(self, path: Path) -> None:
        """Write everything as JSON to NAME.json."""
        content: dict[str, Any] = {
            "benchmark": path.stem,
            "quick": self.quick,
            "machine": describe_machine(),
            "tables": [asdict(table) for table in self.tables],
            "ratios": [{**asdict(r), "met": r.met} for r in self.ratios],
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")
