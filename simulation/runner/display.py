"""What a person sees while experiments run: a bar for each run and one for all."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fed3r_app.runs.report import format_percent, format_seconds
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store
from simulation.runner.tasks import RunTask, Task


class Display:
    """Bars on a terminal; elsewhere a line for each of ``total`` tasks when it ends.

    The metrics that the runs write into the store are followed.
    """

    def __init__(self, store: Store, total: int) -> None:
        self._store, self._total, self._done = store, total, 0
        self.failures: list[tuple[Task, str]] = []
        self._bars: dict[Task, tuple[TaskID, float]] = {}
        self._followed: dict[Task, Path] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(),
            transient=True,
        )
        self._all = self._progress.add_task("all", total=total, note="")

    def __enter__(self) -> Display:
        # Without a terminal the bars would only be printed once, at the end.
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def started(self, task: Task) -> None:
        """Add a bar for a task."""
        total = None
        if isinstance(task, RunTask):
            total = expected_rounds(task.run)
            self._followed[task] = self._store.directory(task.run).metrics_path
        bar = self._progress.add_task(escape(task.title), total=total, note="")
        self._bars[task] = bar, time.monotonic()

    def advanced(self, task: Task, done: int, total: int) -> None:
        """Move a task's bar."""
        self._progress.update(self._bars[task][0], completed=done, total=total)

    def finished(self, task: Task, sentence: str) -> None:
        """Replace a task's bar by a line."""
        bar, began = self._bars.pop(task)
        self._progress.remove_task(bar)
        self._done += 1
        self._progress.update(self._all, completed=self._done)
        if sentence:
            self.failures.append((task, sentence))
        self._followed.pop(task, None)
        outcome = self._outcome(task, sentence)
        seconds = format_seconds(time.monotonic() - began)
        line = f"{self._done} of {self._total}: {task.title}: {outcome}, {seconds}"
        # Above the bars.
        self._progress.console.print(line, markup=False, highlight=False)

    def tick(self) -> None:
        """Let the bars follow what the runs have written."""
        for task, metrics in self._followed.items():
            rounds, accuracy = _progress_of(metrics)
            note = "" if accuracy is None else format_percent(accuracy)
            self._progress.update(self._bars[task][0], completed=rounds, note=note)

    def _outcome(self, task: Task, sentence: str) -> str:
        if sentence:
            return f"FAILED: {sentence}"
        summary = self._store.summary(task.run) if isinstance(task, RunTask) else None
        accuracy = (summary or {}).get("accuracy")
        if not isinstance(accuracy, float):
            return "done"
        return f"accuracy {format_percent(accuracy)}"


def expected_rounds(run: ExperimentRun) -> int | None:
    """Return how many rounds a run has, or None where chance decides."""
    config, rounds = run.config, 0
    if config["method"] != "none" and config["sampling"] == "with-replacement":
        if not config["statistics-rounds"]:
            return None
        rounds = int(config["statistics-rounds"])
    elif config["method"] != "none":
        rounds = -(-run.clients // (run.per_round or run.clients))
    return rounds + (int(config["rounds"]) if config["finetune"] != "none" else 0)


def _progress_of(metrics: Path) -> tuple[int, float | None]:
    """Return the rounds that a run has written so far, and its last accuracy."""
    # What follows the last newline is still being written.
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
    rounds = json.loads(lines[-1]).get("round", 0) if lines else 0  # or the header
    for line in reversed(lines):
        accuracy = json.loads(line).get("accuracy")
        if accuracy is not None:
            return rounds, accuracy
    return rounds, None
