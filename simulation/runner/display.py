"""What a person sees while experiments run: a bar for each run and one for all."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import TaskID

from fed3r_app.console.progress import make_bars
from fed3r_app.runs.report import format_percent, format_seconds, number_of
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import Store
from simulation.runner.tasks import Task


class Display:
    """Bars on a terminal; elsewhere a line for each of ``total`` tasks when it ends.

    A context manager. The metrics that the runs write into the store are followed.
    """

    def __init__(self, store: Store, total: int) -> None:
        self._shown = make_bars(Console())
        self._store, self._total, self._done = store, total, 0
        self.failures: list[tuple[Task, str]] = []
        self._bars: dict[Task, tuple[TaskID, float]] = {}
        self._all = self._shown.add_task("all", total=total, note="")

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.stop()

    def started(self, task: Task) -> None:
        """Add a bar for a task."""
        total = expected_rounds(task.run) if task.run else None
        bar = self._shown.add_task(task.title, total=total, note="")
        self._bars[task] = bar, time.monotonic()

    def advanced(self, task: Task, done: int, total: int) -> None:
        """Move a task's bar."""
        self._shown.update(self._bars[task][0], completed=done, total=total)

    def ended(self, task: Task, reason: str) -> None:
        """Replace a task's bar by a line."""
        bar, began = self._bars.pop(task)
        self._shown.remove_task(bar)
        self._done += 1
        self._shown.update(self._all, completed=self._done)
        summary = self._store.summary(task.run) if task.run else None
        accuracy = number_of(summary or {}, "accuracy")
        outcome = "done" if accuracy is None else f"accuracy {format_percent(accuracy)}"
        if reason:
            self.failures.append((task, reason))
            outcome = f"FAILED: {reason}"
        seconds = format_seconds(time.monotonic() - began)
        line = f"{self._done} of {self._total}: {task.title}: {outcome}, {seconds}"
        # Above the bars.
        self._shown.console.print(line, markup=False, highlight=False)

    def tick(self) -> None:
        """Let the bars follow what the runs have written."""
        for task, (bar, _) in self._bars.items():
            if task.run and not self._shown.disable:
                lines = self._store.directory(task.run).read_metrics()
                rounds = [number_of(line, "round") or 0 for line in lines]
                known = [number_of(line, "accuracy") for line in lines]
                last = next(
                    (each for each in reversed(known) if each is not None), None
                )
                note = "" if last is None else format_percent(last)
                self._shown.update(
                    bar, completed=rounds[-1] if rounds else 0, note=note
                )


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
