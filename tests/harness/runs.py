"""Whole runs in this process, and what is left of a run: the files in its directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fed3r_app.config import DEFAULTS, Value
from fed3r_app.core import RidgeStatistics
from fed3r_app.runs.ledger import Ledger, LedgerEntry
from fed3r_app.runs.model_file import SavedModel, load_model
from fed3r_app.runs.snapshots import Snapshot, load_snapshot
from fed3r_app.server_app import main
from strategies.flower_internals import enter_run
from tests.harness.grid import Before, Exchange, Silent, SpyGrid, Tamper

COMPLETED = "finished:completed"
FILES = {
    *("config.json", "metrics.jsonl", "summary.json", "curves.png", ".lock"),
    *("model.safetensors", "statistics.safetensors", "ledger.jsonl"),
    *("provenance.jsonl", "sketches.jsonl", "confusion.json", "clients.json"),
}


@dataclass(frozen=True)
class Outcome:
    """The files of a run, what it said, and what travelled where that was kept."""

    directory: Path
    status: str = COMPLETED
    output: str = ""
    grid: SpyGrid = field(default_factory=SpyGrid)

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def summary(self) -> dict[str, Any]:
        text = (self.directory / "summary.json").read_text()
        return dict(json.loads(text))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()[1:]
        return [json.loads(line) for line in lines]

    @property
    def model(self) -> SavedModel:
        return load_model(self.directory / "model.safetensors")

    @property
    def weights(self) -> Tensor:
        """The classifier W (d, C)."""
        return self.model.W

    @property
    def snapshot(self) -> Snapshot:
        return load_snapshot(self.directory / "statistics.safetensors")

    @property
    def statistics(self) -> RidgeStatistics:
        return self.snapshot.statistics

    @property
    def ledger(self) -> list[LedgerEntry]:
        return Ledger(self.directory / "ledger.jsonl").entries()

    @property
    def exchanges(self) -> list[Exchange]:
        return self.grid.exchanges

    @property
    def tuning(self) -> list[dict[str, Any]]:
        """The lines of the fine-tuning."""
        return [line for line in self.metrics if line.get("phase") == "finetune"]

    @property
    def trained(self) -> list[Exchange]:
        """The exchanges of the fine-tuning."""
        return self.grid.of("train")

    def round(self, number: int) -> list[Exchange]:
        """Return the exchanges of a round of the fine-tuning."""
        return [each for each in self.trained if each.round == number]

    def sampler(self) -> dict[int, list[int]]:
        """Return the clients of each round, sorted."""
        numbers = dict.fromkeys(each.round for each in self.trained)
        return {n: sorted(each.client for each in self.round(n)) for n in numbers}


def assert_same_model(one: SavedModel, other: SavedModel) -> None:
    """Compare two saved models bit for bit."""
    assert torch.equal(one.W, other.W)
    biases = [each.classifier.bias for each in (one, other)]
    assert biases == [None, None] or torch.equal(*biases)  # type: ignore[arg-type]
    assert one.backbone_arrays.keys() == other.backbone_arrays.keys()
    for name, value in one.backbone_arrays.items():
        assert torch.equal(value, other.backbone_arrays[name]), name


def kebab(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings as a run config has them, ``-`` for ``_``."""
    return {key.replace("_", "-"): value for key, value in settings.items()}


class AppRuns:
    """Runs the app in this process; what it raises is raised.

    Parameters
    ----------
    root : Path
        Holds the directories of the runs.
    given : Mapping
        Settings of every run, where a call doesn't say otherwise.
    seed : int or None
        Of the order of the replies.
    """

    def __init__(
        self, root: Path, given: Mapping[str, Value], seed: int | None = None
    ) -> None:
        self.root = root
        self._given = {"run-name": "it", **given}
        self._seed = seed
        self.last: Outcome

    @property
    def grid(self) -> SpyGrid:
        """The grid of the last run, also of one that ended in an error."""
        return self.last.grid

    def config(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        return DEFAULTS | self._given | kebab(settings)

    def __call__(
        self,
        num_clients: int = 4,
        silent: Silent | None = None,
        *,
        before: Before | None = None,
        tamper: Tamper | None = None,
        gone: Callable[[Message], object] | None = None,
        shuffle: int | None = None,
        **settings: Any,
    ) -> Outcome:
        """Run the app on simulated clients."""
        config = self.config(settings)
        grid = SpyGrid(seed=self._seed if shuffle is None else shuffle)
        for i in range(num_clients):
            node = {"partition-id": i, "num-partitions": num_clients}
            grid.connect(2 + i, node, config)
        grid.before = before or grid.before
        grid.tamper = tamper or grid.tamper
        grid.silent = silent or grid.silent
        grid.gone = gone or grid.gone
        return self.on(grid, config)

    def on(self, grid: SpyGrid, config: dict[str, Value]) -> Outcome:
        """Run the app on the nodes of a grid."""
        self.last = Outcome(self.root / str(config["run-name"]), grid=grid)
        enter_run(grid.run_id, 1, task_id=grid.run_id)
        main(grid, Context(grid.run_id, 1, {}, RecordDict(), config))
        return self.last


def failing(
    clients: Iterable[int], times: int, kind: str = "train.statistics"
) -> Before:
    """Return what lets clients fail so many times at a kind of request."""
    left = dict.fromkeys(clients, times)

    def before(message: Message, context: Context) -> None:
        client = int(context.node_config["partition-id"])
        if message.metadata.message_type == kind and left.get(client):
            left[client] -= 1
            raise ValueError(f"Client {client} is ill.")

    return before
