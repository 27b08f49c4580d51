"""Runs under secure aggregation in this process, with clients that drop out."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS
from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.data import load_dataset, split_rows
from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.privacy.secagg import FixedPointEncoding
from fed3r_app.runs.ledger import Ledger
from fed3r_app.runs.model_file import load_model
from fed3r_app.runs.snapshots import load_snapshot
from fed3r_app.server_app import main
from simulation.engines.inline import InlineGrid

SIZE, LAM = 8, 0.5
UNHEARD = "unheard"
SETTINGS = {
    "backbone": "pixels",
    "image-size": SIZE,
    "partition": "iid",
    "ridge-lambda": LAM,
    "privacy": "secagg",
    "clients-per-round": 0,
    "round-timeout": 0.3,
    "max-retries": 1,
    "run-name": "it",
}


@dataclass(frozen=True)
class Exchange:
    """A request and its reply, None for none."""

    client: int
    kind: str
    request: RecordDict
    reply: RecordDict | None


class SecureGrid(InlineGrid):
    """Keeps what travels. ``silent(client, kind)`` says whose replies are lost.

    Where it returns ``UNHEARD`` the client never gets the request.
    ``before(client, kind, context)`` may look at a client's state, or change it.
    """

    def __init__(self, num_clients, run_config, silent=None, before=None):
        super().__init__(client_app, num_clients, run_config)
        self.exchanges = []
        self._silent = silent or (lambda client, kind: False)
        self._before = before or (lambda client, kind, context: None)

    def pull_messages(self, message_ids):
        for reply, lost in list(self._replies(message_ids)):
            if not lost:
                yield reply

    def _replies(self, message_ids):
        for message_id in message_ids:
            if message_id not in self._waiting:
                continue
            message = self._waiting.pop(message_id)
            context = self._contexts[message.metadata.dst_node_id]
            client = context.node_config["partition-id"]
            kind = message.metadata.message_type
            lost = self._silent(client, kind)
            if lost == UNHEARD:
                continue
            self._before(client, kind, context)
            request = RecordDict(dict(message.content.items()))
            reply = self._answer(message)
            seen = None if reply.has_error() or lost else reply.content
            seen = seen and RecordDict(dict(seen.items()))
            self.exchanges.append(Exchange(client, kind, request, seen))
            yield reply, lost

    def of(self, kind, client=None):
        """Return the exchanges of a kind, of one client where named."""
        return [
            e for e in self.exchanges if e.kind == kind and client in (None, e.client)
        ]


@dataclass(frozen=True)
class Outcome:
    directory: Path
    grid: SecureGrid

    @property
    def summary(self):
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def weights(self):
        return load_model(self.directory / "model.safetensors").W

    @property
    def statistics(self):
        return load_snapshot(self.directory / "statistics.safetensors").statistics

    @property
    def ledger(self):
        return Ledger(self.directory / "ledger.jsonl").entries()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the whole app with some clients; what it raises is raised."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))

    def start(num_clients, silent=None, before=None, **settings):
        changes = {key.replace("_", "-"): value for key, value in settings.items()}
        config = DEFAULTS | SETTINGS | changes
        grid = SecureGrid(num_clients, config, silent, before)
        for name in ("_run_id", "_node_id", "_task_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
        start.grid = grid
        main(grid, Context(grid.run_id, 1, {}, RecordDict(), config))
        return Outcome(tmp_path / "runs" / str(config["run-name"]), grid)

    return start


@pytest.fixture
def plain():
    """Return the plain statistics of some clients' grid-rounded features.

    Summed client by client in float64, as a plain run would; then scaled.
    """

    def add_up(clients, num_clients, feature_map=None, max_samples=1_000_000):
        feature_map = feature_map or FeatureMap(SIZE * SIZE)
        grid = FixedPointEncoding(feature_map, 1.0, max_samples)
        dataset = load_dataset("digits", "")
        backbone = load_backbone(BackboneSpec("pixels", "packaged", SIZE))
        rows = split_rows(dataset, "iid", num_clients, 0.1, 0)
        total = RidgeStatistics.zeros(feature_map.dim, 10)
        for client in clients:
            Z = extract_features(
                backbone, dataset.train, rows[client], device=torch.device("cpu")
            )
            y = torch.from_numpy(dataset.train.labels[rows[client]])
            rounded = grid.round(feature_map(Z))
            total = total + RidgeStatistics.of(rounded, y, 10)
        return grid.scaled(total)

    return add_up


@pytest.fixture
def assert_equal():
    """Check that two statistics and their solutions are the same bit for bit."""

    def check(outcome, stats):
        got = outcome.statistics
        assert torch.equal(got.A, stats.A)
        assert torch.equal(got.b, stats.b)
        assert torch.equal(got.counts, stats.counts)
        assert torch.equal(outcome.weights, solve_ridge(stats, LAM))

    return check
