"""Numbers of runs in Prometheus' text form, for those who watch deployments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fed3r_app.runs.listing import DAMAGED, RUNNING, STATES, ListedRun
from fed3r_app.runs.report import number_of
from fed3r_app.ui.clients import client_rows, count_states
from fed3r_app.ui.results import Results

_SECONDS = "fed3r_exchange_seconds"
_BYTES = ("upload_bytes", "download_bytes", "paper_upload_bytes")
# Every metric with its kind and description, in the order of the answer.
_METRICS = {
    "fed3r_runs": ("gauge", "Runs by state."),
    "fed3r_run_running": ("gauge", "1 for a run under way."),
    "fed3r_run_unreadable": ("gauge", "1 for a run whose files can't be read."),
    "fed3r_accuracy": ("gauge", "Accuracy on the test images."),
    "fed3r_clients": ("gauge", "Clients by state."),
    "fed3r_upload_bytes": ("gauge", "Bytes uploaded by all clients."),
    "fed3r_download_bytes": ("gauge", "Bytes downloaded by all clients."),
    "fed3r_paper_upload_bytes": ("gauge", "Uploaded bytes by the paper's formula."),
    _SECONDS: ("summary", "Seconds of the exchanges with clients, one a round."),
}


class _Sample(NamedTuple):
    """A number of a metric; ``part`` is what its name ends with, in a summary."""

    metric: str
    labels: dict[str, str]
    value: float | None  # None where it is not known
    part: str = ""

    def line(self) -> str:
        """Return the number as a line."""
        inside = ",".join(
            f'{key}="{_escaped(self.labels[key])}"' for key in self.labels
        )
        assert self.value is not None
        return f"{self.metric}{self.part}{{{inside}}} {float(self.value)!r}"


def exposition(results: Results) -> str:
    """Return the metrics of the runs under way, or else of the latest one."""
    runs = results.runs()
    states = Counter(run.state for run in runs)
    samples = [_Sample("fed3r_runs", {"state": s}, states[s]) for s in STATES]
    shown = [run for run in runs if run.state == RUNNING]
    for run in shown or [run for run in runs if run.state != DAMAGED][:1]:
        try:
            samples += list(_of_run(results, run))
        except (OSError, ValueError):
            samples.append(_Sample("fed3r_run_unreadable", {"run": run.name}, 1))
    return "\n".join([*_lines(samples), ""])


def _of_run(results: Results, listed: ListedRun) -> Iterator[_Sample]:
    """Yield the samples of a run."""
    run, own = results.open(listed.name), {"run": listed.name}
    is_running, lines = listed.state == RUNNING, run.metrics()
    last = lines[-1] if lines else {}
    values = last if is_running else {**last, **run.summary()}
    yield _Sample("fed3r_run_running", own, is_running)
    yield _Sample("fed3r_accuracy", own, listed.accuracy)
    for state, number in count_states(client_rows(run, listed.state)).items():
        yield _Sample("fed3r_clients", {**own, "state": state}, number)
    for key in _BYTES:
        yield _Sample(f"fed3r_{key}", own, number_of(values, key))
    yield _Sample(_SECONDS, own, number_of(last, "seconds"), "_sum")
    yield _Sample(_SECONDS, own, len(lines), "_count")


def _lines(samples: list[_Sample]) -> Iterator[str]:
    """Yield the lines of all metrics that are known."""
    for metric, (kind, about) in _METRICS.items():
        known = [s for s in samples if s.metric == metric and s.value is not None]
        if known:
            yield f"# HELP {metric} {about}"
            yield f"# TYPE {metric} {kind}"
            yield from (sample.line() for sample in known)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
