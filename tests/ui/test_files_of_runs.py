"""The files that the page is made of, as real runs leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fed3r_app.cli import main as fed3r
from fed3r_app.errors import RunError
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.ui.results import Results
from fed3r_app.ui.views import clients_view, run_view
from tests.harness.fixtures import _a_run, app_runs  # noqa: F401
from tests.harness.pixels import EXACT
from tests.harness.runs import AppRuns, failing

FOUR = ["0", "1", "2", "3"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, EXACT | {"max-retries": 0}, seed=0)


def accuracy_of_the_classes(directory: Path) -> float:
    """Return the accuracy that confusion.json gives."""
    classes, counts = RunDirectory(directory).read_confusion()
    assert classes == [str(digit) for digit in range(10)]
    right = sum(number for truth, guess, number in counts if truth == guess)
    return right / sum(number for *_, number in counts)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"finetune": "lp", "rounds": 2, "guard": False, "lr": 0.5},
        {"finetune": "lp", "rounds": 2},
    ],
    ids=["ridge", "softmax", "guarded"],
)
def test_the_classes_are_those_of_the_models_accuracy(
    run: AppRuns, settings: Any
) -> None:
    outcome = run(4, **settings)
    accuracy = outcome.summary["accuracy"]
    assert accuracy_of_the_classes(outcome.directory) == pytest.approx(accuracy)


def test_a_model_that_is_changed_later_has_its_own_classes(run: AppRuns) -> None:
    tuned: Any = {"finetune": "lp", "rounds": 2, "guard": False, "lr": 0.5}
    first = run(4, run_name="tuned", **tuned)
    RunDirectory(first.directory).write_confusion(["a"], [(0, 0, 1)])
    again = run(4, run_name="tuned", resume=True, **tuned)  # there is nothing to train
    accuracy = again.summary["accuracy"]
    assert accuracy_of_the_classes(again.directory) == pytest.approx(accuracy)

    solved = run(4, run_name="solved")
    before = solved.summary["accuracy"]
    assert fed3r(["solve", str(solved.directory), "--method", "fedncm"]) == 0
    accuracy = solved.summary["accuracy"]
    assert accuracy != before
    assert accuracy_of_the_classes(solved.directory) == pytest.approx(accuracy)


def test_clients_wait_until_they_reply_and_are_missing_after_the_end(
    run: AppRuns,
) -> None:
    seen: list[Any] = []

    def watch(message: Any, context: Any) -> None:
        """Look at the page while the first client is at work."""
        if message.metadata.message_type == "train.statistics" and not seen:
            seen.append(run_view(Results(run.root).open("it")))
        failing([3], times=9)(message, context)

    with pytest.raises(RunError):
        run(4, before=watch)
    files = Results(run.root).open("it")
    assert seen[0]["run"]["state"] == "running"
    assert seen[0]["clients"] == {"waiting": 4}
    assert seen[0]["progress"] == [{"what": "clients counted", "done": 0, "total": 4}]
    assert run_view(files)["clients"] == {"counted": 3, "failed": 1}
    rows: Any = clients_view(files, "failed", "", 0, 10)["rows"]
    assert [row["client"] for row in rows] == ["3"] and "ill" in rows[0]["reason"]
    files.directory.write_clients([*FOUR, "late"])
    assert run_view(files)["clients"] == {"counted": 3, "failed": 1, "missing": 1}


def test_clients_that_only_train_are_not_waited_for(run: AppRuns) -> None:
    run(4, method="none", finetune="lp", rounds=1)
    view = run_view(Results(run.root).open("it"))
    assert view["clients"] == {"training": 4}
    trained = {"what": "rounds of fine-tuning", "done": 1, "total": 1}
    assert view["progress"] == [trained]
