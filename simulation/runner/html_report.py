"""All that an experiment came to, as files: tables, pictures, and one HTML page."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from pathlib import Path

from fed3r_app.files import write_atomically
from fed3r_app.runs.report import format_percent, format_seconds
from simulation.runner.analyses import kernel_table, read_lines
from simulation.runner.collect import Results, collect, rows_of, write_rows
from simulation.runner.experiment import Experiment
from simulation.runner.figures import draw_curves, draw_final, draw_kernel
from simulation.runner.outcome_tables import outcome_table, target_tables
from simulation.runner.store import Store, run_name
from simulation.tables import Table

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

    page: Path
    figures: list[Path]
    tables: list[Table]


def write_report(experiment: Experiment, store: Store) -> Report:
    """Write tables, pictures and the page of what there is of an experiment."""
    folder = store.folder(experiment.name)
    folder.mkdir(parents=True, exist_ok=True)
    results = collect(experiment, store)
    tables = tables_of(results, store)
    rows = rows_of(results) if experiment.runs else _plain_rows(tables)
    write_rows(rows, folder)
    text = "\n\n".join(table.markdown() for table in tables)
    write_atomically(folder / "tables.md", text.encode() + b"\n")
    figures = []
    for name, image in _pictures(results, store).items():
        figures.append(folder / f"{name}.png")
        write_atomically(figures[-1], image)
    page = folder / "report.html"
    content = _page(results, tables, figures, experiment.source.file)
    write_atomically(page, content.encode())
    return Report(page, figures, tables)


def tables_of(results: Results, store: Store) -> list[Table]:
    """Return all tables of an experiment."""
    experiment, tables = results.experiment, []
    if results.finished:
        tables.append(outcome_table(results))
    if results.finished and experiment.target:
        tables += target_tables(results, experiment.target)
    lines = read_lines(experiment, store)
    if lines and experiment.kernel:
        tables.append(kernel_table(lines))
    if lines and experiment.coupons:
        tables.append(experiment.coupons.table(lines))
    return tables


def _plain_rows(tables: list[Table]) -> list[dict[str, object]]:
    """Return the rows of a table without runs."""
    return [
        dict(zip((table.columns[0] or "name", *table.columns[1:]), row, strict=True))
        for table in tables
        for row in table.rows
    ]


def _pictures(results: Results, store: Store) -> dict[str, bytes]:
    """Return the pictures that an experiment asks for and has data for."""
    wanted, pictures = results.experiment.plot.figures, {}
    for name, draw in (("curves", draw_curves), ("final", draw_final)):
        if name in wanted and results.finished:
            pictures[name] = draw(results)
    lines = read_lines(results.experiment, store)
    if "kernel" in wanted and lines:
        pictures["kernel"] = draw_kernel(lines)
    return pictures


def _page(
    results: Results, tables: list[Table], figures: list[Path], file: Path
) -> str:
    """Return one HTML page with everything in it; it needs no other file."""
    experiment = results.experiment
    title = html.escape(experiment.title)
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(experiment.about)}</p>"]
    parts.append(
        f"<p>Made by <code>fed3r experiments run {html.escape(experiment.name)}"
        "</code>.</p>"
    )
    if results.missing:
        names = "; ".join(html.escape(run.title) for run in results.missing)
        count = f"{len(results.missing)} of {len(experiment.runs)} runs are missing"
        parts.append(f'<p class="missing">{count}: {names}.</p>')
    parts += [_embedded(path) for path in figures]
    parts += [table.html() for table in tables]
    if results.finished:
        parts += ["<h2>All runs</h2>", _runs_table(results).html()]
    source = html.escape(file.read_text())
    parts += [f"<h2>{html.escape(file.name)}</h2>", f"<pre>{source}</pre>"]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title>\n<style>\n{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _embedded(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem)
    return f'<img alt="{name}" src="data:image/png;base64,{data}">'


def _runs_table(results: Results) -> Table:
    rows = []
    for each in results.finished:
        accuracy, seconds = each.measure("accuracy"), each.measure("seconds")
        rows.append(
            (
                each.run.title,
                "-" if accuracy is None else format_percent(accuracy),
                "-" if seconds is None else format_seconds(seconds),
                run_name(each.run),
            )
        )
    return Table("One row a run", ("", "accuracy", "time", "folder in runs/"), rows)
