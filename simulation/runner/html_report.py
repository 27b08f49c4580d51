"""The report of an experiment: tables, pictures, and one HTML page."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fed3r_app.files import write_atomically
from fed3r_app.runs.provenance import rows_of
from fed3r_app.runs.report import format_percent, format_seconds
from fed3r_app.words import first_names, plural
from simulation.runner.collect import Results, collect
from simulation.runner.experiment import Experiment, curve_of
from simulation.runner.outcome_tables import tables_of
from simulation.runner.store import Store, run_name
from simulation.tables import Table

Row = dict[str, object]
_NO_CELLS = ("missing_clients", "absent_classes", "provenance")
_MAX_NAMED = 5
_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; color: #222; background: #fff }
img { max-width: 100%; margin: 1rem 0 }
table { border-collapse: collapse; margin: 1.5rem 0; font-size: 14px; display: block;
  overflow-x: auto }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem;
  white-space: nowrap }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right;
  white-space: nowrap }
th:first-child, td:first-child { text-align: left }
code, pre { font-size: 13px; background: #f5f5f5; padding: .1rem .3rem }
pre { padding: .8rem; overflow-x: auto }
.missing { background: #fff3cd; padding: .6rem 1rem }
"""


@dataclass(frozen=True)
class Report:
    """What was written of an experiment."""

    results: Results
    page: Path
    figures: list[Path]
    tables: list[Table]


def write_report(
    experiment: Experiment, store: Store, picture_format: str = "png"
) -> Report:
    """Write tables, pictures and the page of what there is of an experiment.

    The page has its pictures as PNG; another format is for files beside it.
    """
    from simulation.runner.figures import draw_all  # loads matplotlib

    folder = store.root / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    results = collect(experiment, store)
    tables, pictures = tables_of(results), draw_all(results)
    others = draw_all(results, picture_format) if picture_format != "png" else {}
    rows = _rows_of_runs(results) if experiment.runs else _rows_of_tables(tables)
    page = _page(results, tables, pictures)
    files = {
        "results.csv": _csv(rows),
        "results.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "tables.md": "\n\n".join(table.markdown() for table in tables) + "\n",
        "report.html": page,
    }
    contents = {name: text.encode() for name, text in files.items()}
    for name, content in (contents | pictures | others).items():
        write_atomically(folder / name, content)
    paths = [folder / name for name in others or pictures]
    return Report(results, folder / "report.html", paths, tables)


def _rows_of_runs(results: Results) -> list[Row]:
    """Return a row for each run: its place in the grid, its settings, its outcome."""
    both = [*results.finished, *([results.reference] if results.reference else [])]
    configs = [each.run.config for each in both]
    varying = [
        key
        for key in (configs[0] if configs else ())
        if key == "seed" or len({repr(config[key]) for config in configs}) > 1
    ]
    return [
        {
            "experiment": results.experiment.name,
            "run": run_name(each.run),
            "curve": curve_of(each.run),
            **{key: each.run.config[key] for key in varying},
            **{key: each.summary[key] for key in each.summary if key not in _NO_CELLS},
            "clients": each.run.clients,
        }
        for each in both
    ]


def _rows_of_tables(tables: list[Table]) -> list[Row]:
    """Return the rows of the tables of an experiment without runs."""
    return [
        dict(zip((table.columns[0] or "name", *table.columns[1:]), row, strict=True))
        for table in tables
        for row in table.rows
    ]


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _page(results: Results, tables: list[Table], pictures: dict[str, bytes]) -> str:
    """Return one HTML page with everything in it; it needs no other file."""
    experiment, file = results.experiment, results.experiment.source.file
    title = html.escape(experiment.title)
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{html.escape(experiment.about)}</p>",
        f"<p>Made by <code>fed3r experiments run {html.escape(experiment.name)}"
        "</code>.</p>",
    ]
    if results.missing:
        names = "; ".join(html.escape(run.title) for run in results.missing)
        runs = plural(len(experiment.runs), "run")
        count = f"{len(results.missing)} of {runs} missing"
        parts.append(f'<p class="missing">{count}: {names}.</p>')
    for name, image in pictures.items():
        data, alt = base64.b64encode(image).decode(), html.escape(Path(name).stem)
        parts.append(f'<img alt="{alt}" src="data:image/png;base64,{data}">')
    parts += [table.html() for table in tables]
    if results.finished:
        parts += ["<h2>All runs</h2>", _runs_table(results).html()]
        parts += [_made_with(results).html()]
    source = html.escape(file.read_text())
    parts += [f"<h2>{html.escape(file.name)}</h2>", f"<pre>{source}</pre>"]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title>\n<style>\n{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _runs_table(results: Results) -> Table:
    columns = {"accuracy": format_percent, "seconds": format_seconds}
    rows = []
    for each in results.finished:
        values = ((each.measure(key), form) for key, form in columns.items())
        cells = (None if value is None else form(value) for value, form in values)
        rows.append((each.run.title, *cells, run_name(each.run)))
    return Table("One row a run", ("", "accuracy", "time", "folder in runs/"), rows)


def _made_with(results: Results) -> Table:
    """Return versions, machines and dates of all runs, each value once."""
    found: dict[str, dict[str, None]] = {}
    for each in results.finished:
        about = each.summary.get("provenance")
        for label, text in rows_of(about) if isinstance(about, Mapping) else ():
            found.setdefault(label, {})[text] = None
    dates = sorted(found.pop("date", {}))
    found.pop("command", None)  # it is in the page's first line
    rows = [
        (label, first_names(list(texts), _MAX_NAMED)) for label, texts in found.items()
    ]
    if dates:
        rows[:0] = [("first run", dates[0]), ("last run", dates[-1])]
    return Table("Made with", ("", ""), rows, 2)
