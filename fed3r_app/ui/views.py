"""What the page shows of runs, as plain values: numbers of the files, and their texts.

Numbers are put into words here and by ``runs.report`` alone, so that the page says
what `fed3r show` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b

from fed3r_app.config import DEFAULTS, Value
from fed3r_app.runs.ledger import FORGOTTEN
from fed3r_app.runs.listing import RUNNING, ListedRun
from fed3r_app.runs.report import (
    HEADS_NOTE,
    format_bytes,
    format_flops,
    format_percent,
    format_seconds,
    head_rows,
    number_of,
    summary_rows,
)
from fed3r_app.ui.clients import COUNTED, client_rows, count_states
from fed3r_app.ui.results import Results, RunFiles

_MOST_POINTS = 1000  # of a curve: more than a screen has columns for
_CURVE = {
    "accuracy": format_percent,
    "round": "{:,.0f}".format,
    "upload_bytes": format_bytes,
    "paper_upload_bytes": format_bytes,
    "flops_per_client": format_flops,
    "seconds": format_seconds,
}
_COSTS = (
    ("uploaded", "upload_bytes", "paper_upload_bytes"),
    ("downloaded", "download_bytes", "paper_download_bytes"),
)
# Of no interest beside another run's: where a run lies, and how it was continued.
_PLACES = ("output-dir", "run-name", "resume", "forget", "replace")
View = dict[str, object]


def list_view(results: Results) -> View:
    """Return the rows of the list of runs."""
    rows = [*map(_row, results.runs())]
    version = blake2b(repr(rows).encode(), digest_size=8).hexdigest()
    return {"version": version, "folder": str(results.folder), "runs": rows}


def run_view(run: RunFiles) -> View:
    """Return what the page of a run shows, but for tables with a row per client."""
    version = run.version  # first: what changes meanwhile is then asked for again
    listed = run.results.describe(run)
    summary, config, lines = run.summary(), run.config(), run.metrics()
    counts = count_states(client_rows(run, listed.state))
    outcome = {} if listed.state == RUNNING else summary
    last = {**(lines[-1] if lines else {}), **outcome}
    return {
        "version": version,
        "run": _row(listed),
        "outcome": summary_rows(outcome),
        "heads": head_rows(outcome),
        "heads_note": HEADS_NOTE,
        "curve": curve_of(lines),
        "costs": _costs(last),
        "time": _text(last, "seconds", format_seconds),
        "clients": counts,
        "progress": _progress(counts, config, lines),
        "settings": [
            (key, _setting(value), DEFAULTS.get(key) == value)
            for key, value in config.items()
        ],
        "provenance": summary.get("provenance"),
        "has_model": run.directory.model_path.is_file(),
    }


def clients_view(
    run: RunFiles, state: str, search: str, offset: int, limit: int
) -> View:
    """Return some rows of the table of clients, and how many there are in all."""
    search, now = search.casefold(), run.results.describe(run).state
    rows = [
        row
        for row in client_rows(run, now)
        if (not state or row.state == state) and search in row.client.casefold()
    ]
    page = rows[offset : offset + limit]
    return {"total": len(rows), "offset": offset, "rows": [*map(asdict, page)]}


def compare_view(runs: Sequence[RunFiles]) -> View:
    """Return two runs side by side: settings that differ, outcomes, curves."""
    configs = [run.config() for run in runs]
    outcomes = [dict(summary_rows(run.summary())) for run in runs]
    labels = dict.fromkeys(label for outcome in outcomes for label in outcome)
    return {
        "runs": [_row(run.results.describe(run)) for run in runs],
        "settings": _differences(configs),
        "outcome": [(key, *(each.get(key, "") for each in outcomes)) for key in labels],
        "curves": [curve_of(run.metrics()) for run in runs],
    }


def curve_of(lines: Sequence[Mapping[str, object]]) -> list[View]:
    """Return the rounds with an accuracy, thinned where there are very many."""
    measured = [line for line in lines if number_of(line, "accuracy") is not None]
    step = -(-len(measured) // _MOST_POINTS) or 1
    kept = measured[::-step][::-1]  # the last one always
    return [
        {
            "phase": line.get("phase", ""),
            **{key: line.get(key) for key in _CURVE},
            "text": {key: _text(line, key, form) for key, form in _CURVE.items()},
        }
        for line in kept
    ]


def _row(run: ListedRun) -> View:
    """Return a run as the list has it."""
    accuracy = run.accuracy
    clients = "" if run.clients is None else f"{run.clients:,}"
    if run.clients_counted is not None and run.clients_counted != run.clients:
        clients = f"{run.clients_counted:,}" + (clients and f" of {clients}")
    return {
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "began": run.began.isoformat(),
        "method": run.method,
        "dataset": run.dataset,
        "accuracy": accuracy,
        "accuracy_text": "" if accuracy is None else format_percent(accuracy),
        "clients": run.clients,
        "clients_counted": run.clients_counted,
        "clients_text": clients,
        "rounds": run.rounds,
    }


def _progress(
    counts: Mapping[str, int],
    config: Mapping[str, Value],
    lines: Sequence[Mapping[str, object]],
) -> list[View]:
    """Return how much of each phase is done: by the ledger, within a round, too."""
    known: list[View] = []
    if config.get("method") != "none":
        clients = sum(counts.values()) - counts.get(FORGOTTEN, 0)
        counted = {"done": counts.get(COUNTED, 0), "total": clients}
        known.append({"what": "clients counted", **counted})
    if config.get("finetune", "none") != "none":
        done = sum(line.get("phase") == "finetune" for line in lines)
        total = config.get("rounds")
        known.append({"what": "rounds of fine-tuning", "done": done, "total": total})
    return known


def _costs(values: Mapping[str, object]) -> list[View]:
    """Return what was sent beside the paper's formulas, and the paper's FLOPs."""
    known: list[View] = [
        {
            "what": what,
            "ours": _text(values, ours, format_bytes),
            "paper": _text(values, paper, format_bytes),
        }
        for what, ours, paper in _COSTS
        if number_of(values, ours) is not None
    ]
    flops = _text(values, "flops_per_client", format_flops)
    if flops:
        known.append({"what": "FLOPs per client", "ours": "", "paper": flops})
    return known


def _differences(configs: Sequence[Mapping[str, Value]]) -> list[View]:
    """Return the settings that differ; what an older run does not have is a default."""
    keys = dict.fromkeys((*DEFAULTS, *configs[0], *configs[1]))
    found: list[View] = []
    for key in keys:
        values = [config.get(key, DEFAULTS.get(key, "")) for config in configs]
        if key not in _PLACES and values[0] != values[1]:
            found.append({"key": key, "values": [*map(_setting, values)]})
    return found


def _setting(value: Value) -> str:
    """Return a setting as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(values: Mapping[str, object], key: str, form: object) -> str:
    """Return a number as text; "" where there is none."""
    number = number_of(values, key)
    assert callable(form)
    return "" if number is None else str(form(number))
