"""Numbers of runs in Prometheus' text form, for those who watch deployments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fed3r_app.runs.listing import DAMAGED, RUNNING, STATES, ListedRun
from fed3r_app.runs.report import number_of
from fed3r_app.ui.clients import client_rows, count_states
from fed3r_app.ui.results import Results

_Sample = tuple[dict[str, str], float]
_COSTS = {
    "upload_bytes": "Bytes uploaded by all clients.",
    "download_bytes": "Bytes downloaded by all clients.",
    "paper_upload_bytes": "Bytes that all clients would upload by the paper's formula.",
}


def exposition(results: Results) -> str:
    """Return the metrics of the runs under way, or else of the latest one."""
    runs = results.runs()
    states = Counter(run.state for run in runs)
    numbers = [({"state": state}, states[state]) for state in STATES]
    lines = [*_metric("fed3r_runs", "gauge", "Runs by state.", numbers)]
    shown = [run for run in runs if run.state == RUNNING]
    shown = shown or [run for run in runs if run.state != DAMAGED][:1]
    for name, (kind, about, samples) in _of_runs(results, shown).items():
        lines += _metric(name, kind, about, samples)
    return "\n".join(lines) + "\n"


def _of_runs(
    results: Results, shown: list[ListedRun]
) -> dict[str, tuple[str, str, list[_Sample]]]:
    """Return the metrics of some runs: kind, description and samples by name."""
    found: dict[str, tuple[str, str, list[_Sample]]] = {}

    def add(
        name: str, kind: str, about: str, value: float | None, **labels: str
    ) -> None:
        if value is not None:
            samples = found.setdefault(name, (kind, about, []))[2]
            samples.append((labels, value))

    for listed in shown:
        run, name = results.open(listed.name), listed.name
        lines, over = run.metrics(), listed.state != RUNNING
        last = lines[-1] if lines else {}
        values = {**last, **(run.summary() if over else {})}
        add("fed3r_run_running", "gauge", "1 while at work.", not over, run=name)
        accuracy = "Accuracy on the test images."
        add("fed3r_accuracy", "gauge", accuracy, listed.accuracy, run=name)
        counts = count_states(client_rows(run, listed.state))
        for state, number in counts.items():
            about = "Clients by state."
            add("fed3r_clients", "gauge", about, number, run=name, state=state)
        for key, about in _COSTS.items():
            add(f"fed3r_{key}", "gauge", about, number_of(values, key), run=name)
        about = "Seconds of the exchanges with clients, one a round."
        seconds = number_of(last, "seconds")
        name_of = "fed3r_exchange_seconds"
        add(f"{name_of}_sum", "summary", about, seconds, run=name)
        add(f"{name_of}_count", "summary", about, len(lines) or None, run=name)
    return found


def _metric(
    name: str, kind: str, about: str, samples: Iterable[_Sample]
) -> Iterator[str]:
    """Yield the lines of a metric."""
    family = name.removesuffix("_sum").removesuffix("_count")
    if not name.endswith("_count"):  # the two of a summary share one description
        yield f"# HELP {family} {about}"
        yield f"# TYPE {family} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{inside}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
