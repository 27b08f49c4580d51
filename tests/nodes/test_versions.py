"""Versions at the nodes and in a run's history: compared, said, refused."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fed3r_app.errors import RunError
from fed3r_app.wire.versions import CODE_VERSION, agree, installed_version
from tests.harness.nodes import ALL, Federation
from tests.harness.runs import Outcome

PROJECT = Path(__file__).parents[2]


def run_with(federation: Federation, **said: str) -> Outcome:
    """Run the app; clinic-b and clinic-c say other versions in their hello."""
    grid = federation.make_grid(ALL)

    def tamper(context: Context, request: RecordDict, reply: RecordDict) -> None:
        config = reply.config_records.get("config", ConfigRecord())
        if context.node_config["client-id"] in ("clinic-b", "clinic-c"):
            for key, value in said.items():
                if key in config:
                    config[key] = value

    grid.tamper = tamper
    return federation.run(grid=grid)


def test_the_version_of_the_code_is_that_of_the_project() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == CODE_VERSION


def test_versions_agree_up_to_the_minor_one() -> None:
    assert agree("0.2.0", "0.2.7.dev3") and agree("", "1.0") and agree("1.0", "")
    assert not agree("0.2.0", "0.20.0") and not agree("1.2", "0.2")


def test_a_node_says_which_versions_it_has(federation: Federation) -> None:
    federation.run(ALL)
    for exchange in federation.grid.of("query.hello"):
        config = exchange.reply.config_records["config"]
        assert config["code-version"] == CODE_VERSION
        assert config["installed-version"] == installed_version()


def test_another_minor_version_that_is_installed_is_said_once(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run_with(federation, **{"installed-version": "0.1.4"})
    assert sorted(outcome.snapshot.contributions) == sorted(ALL)
    said = [r.message for r in caplog.records if "0.1.4" in r.message]
    assert len(said) == 1
    assert said[0].startswith("Client clinic-b has fed3r 0.1.4 installed")


def test_code_of_another_minor_version_is_refused(federation: Federation) -> None:
    with pytest.raises(RunError, match=r"clinic-b must run fed3r .* got 0\.9\.0"):
        run_with(federation, **{"code-version": "0.9.0"})


def test_what_is_no_version_is_refused(federation: Federation) -> None:
    with pytest.raises(RunError, match="installed-version must be a version such as"):
        run_with(federation, **{"installed-version": "0.2\x1b[31m"})


@pytest.mark.parametrize("value", ["", 0, 0.0, False, "auto", "none"])
def test_a_key_of_a_later_version_that_changes_nothing_is_ignored_by_nodes(
    federation: Federation, value: Any
) -> None:
    grid = federation.make_grid(ALL)
    for context in grid.contexts.values():
        context.run_config = {**federation.run_config, "later-key": value}
    assert federation.run(grid=grid).snapshot.contributions


def test_one_that_changes_something_is_not(federation: Federation) -> None:
    grid = federation.make_grid(ALL)
    for context in grid.contexts.values():
        context.run_config = {**federation.run_config, "later-key": 3}
    with pytest.raises(RunError, match="'later-key' is not known"):
        federation.run(grid=grid)


def resumed_lines(directory: Path) -> list[str]:
    return [e.reason for e in Outcome(directory).ledger if e.outcome == "resumed"]


def test_a_run_that_another_version_resumes_says_so(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    directory = federation.run(ALL[:3]).directory
    federation.run(ALL[:3], resume=True)
    assert not resumed_lines(directory)
    path = directory / "provenance.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "versions" in line:
            line["versions"]["fed3r"] = "0.1.9"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    caplog.clear()
    federation.run(ALL, resume=True)
    assert resumed_lines(directory) == [f"by fed3r {CODE_VERSION}, after fed3r 0.1.9"]
    said = [r.message for r in caplog.records if "resumed by" in r.message]
    assert len(said) == 1
    federation.run(ALL, resume=True)  # by the same version as before
    assert len(resumed_lines(directory)) == 1


def test_so_does_a_run_of_0_1(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = PROJECT / "tests" / "compatibility" / "v0_1"
    directory = federation.home / "runs" / "it"
    shutil.copytree(saved / "local-nodes", directory)
    with pytest.raises(RunError):  # of other settings: it goes no further
        federation.run(ALL, resume=True, seed=9)
    assert resumed_lines(directory) == [f"by fed3r {CODE_VERSION}, after fed3r 0.1"]
