"""What will not heal is refused at once, and nobody is asked again because of it."""

from pathlib import Path
from typing import Any

import pytest

from fed3r_app.errors import RunError
from fed3r_app.server.preflight import given_settings
from tests.harness.fixtures import app_runs
from tests.harness.pixels import EXACT
from tests.harness.runs import AppRuns

CLIENTS = {"dataset": "synthetic:clients=5,features=8", "backbone": "none"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppRuns:
    return app_runs(tmp_path, monkeypatch, EXACT | {"max-retries": 3})


def test_no_client_is_asked_for_a_split_that_the_data_set_does_not_have(
    run: AppRuns,
) -> None:
    with pytest.raises(RunError, match="has no natural clients"):
        run(4, partition="natural")
    assert not (run.root / "it").exists()


def test_a_number_of_clients_that_is_wrong_is_no_reason_to_ask_again(
    run: AppRuns,
) -> None:
    settings: dict[str, Any] = {**CLIENTS, "partition": "natural"}
    with pytest.raises(RunError, match=r"must be 5, .* got 4\. Give --clients 5"):
        run(4, **settings)
    asked = [exchange.client for exchange in run.grid.exchanges]
    assert len(asked) == len(set(asked)) == 4


def test_settings_of_the_command_line_come_before_those_of_a_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("method: lda\nseed: 3\n")
    assert given_settings(["method=fedncm"], file=file) == {
        "method": "fedncm",
        "seed": 3,
    }
    assert given_settings([], [str(file), "seed=4"])["seed"] == 4
    with pytest.raises(ValueError, match="--config must be given once"):
        given_settings([], [str(file)], file)


def test_settings_of_a_file_and_of_the_command_line_must_go_together(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.toml"
    file.write_text('dataset = "local"\nlabels = "ape, bee"\n')
    assert given_settings([], file=file)["labels"] == "ape, bee"
    with pytest.raises(ValueError, match="labels must be ''"):
        given_settings(["dataset=digits"], file=file)
