"""Experiments run to their end: features first, then runs, then what builds on them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from fed3r_app.runs.report import format_seconds
from fed3r_app.words import plural
from simulation.runner.analyses import analyses_wanted
from simulation.runner.display import Display
from simulation.runner.experiment import Experiment
from simulation.runner.html_report import write_report
from simulation.runner.pool import Pool
from simulation.runner.run_grid import ExperimentRun
from simulation.runner.store import DONE, Store
from simulation.runner.tasks import (
    FLOWER,
    available_cores,
    features_wanted,
    run_task,
)

_MOST_JOBS = 4  # a run holds 1 to 2 GB


def run_experiments(
    experiments: Sequence[Experiment], store: Store, engine: str, jobs: int = 0
) -> int:
    """Run what is not done yet, so many at a time; return 0 if everything is done then.

    A run that several experiments share is run once. 0 jobs: as many as cores, up to 4.
    """
    began = time.monotonic()
    runs = {run.identity: run for each in experiments for run in each.all_runs}
    with store.claimed():
        waiting = [run for run in runs.values() if store.state(run) != DONE]
        if len(waiting) < len(runs):
            done = len(runs) - len(waiting)
            print(f"{done} of {plural(len(runs), 'run')} done already.", flush=True)
        features = features_wanted(waiting, store.runs)
        tasks = [run_task(run, store, engine) for run in sorted(waiting, key=_cost)]
        analyses = [
            task for each in experiments for task in analyses_wanted(each, store)
        ]
        # On Flower's engine one run has all processors already.
        jobs = 1 if engine == FLOWER else jobs or min(available_cores(), _MOST_JOBS)
        with (
            Display(store, len(features) + len(tasks) + len(analyses)) as display,
            Pool(jobs, share_threads=engine != FLOWER) as pool,
        ):
            pool.run(features, display, jobs=1)
            pool.run(tasks, display)
            pool.run(analyses, display, jobs=1)
        for experiment in experiments:
            report = write_report(experiment, store)
            print(f"\n{experiment.name}: {experiment.title}\n")
            for table in report.tables:
                print(f"{table.text()}\n")
            print(f"Report: {report.page}\n", flush=True)
    seconds = format_seconds(time.monotonic() - began)
    if not display.failures:
        print(f"Done: {plural(len(runs), 'run')}. {seconds}.")
        return 0
    print(f"{len(display.failures)} failed, in {seconds}:", file=sys.stderr)
    for task, reason in display.failures:
        print(f"  {task.title}: {reason}\n    Log: {task.log}", file=sys.stderr)
    return 1


def _cost(run: ExperimentRun) -> tuple[bool, bool]:
    """Return what to sort by, so that what is quick comes first."""
    finetune = run.config["finetune"]
    return finetune in ("full", "feat"), finetune != "none"
