"""The whole app in this process, on nodes that hold images of their own."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS
from fed3r_app.core import RidgeStatistics, solve_ridge
from fed3r_app.runs.model_file import load_model
from fed3r_app.server_app import main
from simulation.engines.inline import InlineGrid

SIZE, LAM = 8, 0.5
EXACT = {
    "dataset": "local",
    "backbone": "pixels",
    "image-size": SIZE,
    "ridge-lambda": LAM,
    "upload-dtype": "float64",
    "round-timeout": 20.0,
    "max-retries": 1,
    "run-name": "it",
}
# Which classes the images of each node are of: none has all, some share one.
CLINICS = {
    "clinic-a": ("cat", "cat", "dog"),
    "clinic-b": ("dog", "owl", "owl", "owl"),
    "clinic-c": ("cat", "elk"),
    "clinic-10": ("yak", "yak", "owl"),
}


class NodesGrid(InlineGrid):
    """Nodes by id, each with a node config of its own; they may come and go.

    ``log`` holds (node, message type) of every request, and ``before(node, kind)`` is
    called ahead of each. ``silent`` says how often a node keeps its statistics back.
    """

    def __init__(self, run_config):
        super().__init__(client_app, 0, run_config)
        self._config = dict(run_config)
        self.log = []
        self.before = lambda node, kind: None
        self.silent = {}

    def connect(self, node_id, node_config):
        state = RecordDict()
        self._contexts[node_id] = Context(
            1, node_id, dict(node_config), state, self._config
        )

    def disconnect(self, node_id):
        del self._contexts[node_id]

    def node_config(self, node_id):
        return self._contexts[node_id].node_config

    def push_messages(self, messages):
        # As Flower does for a node that is gone: dropped, unsaid.
        return super().push_messages(
            [m for m in messages if m.metadata.dst_node_id in self._contexts]
        )

    def pull_messages(self, message_ids):
        kept_back = set()
        for message_id in message_ids:
            message = self._waiting.get(message_id)
            if message and message.metadata.message_type == "train.statistics":
                node = message.metadata.dst_node_id
                if self.silent.get(node, 0):
                    self.silent[node] -= 1
                    del self._waiting[message_id]
                    kept_back.add(message_id)
        return super().pull_messages(m for m in message_ids if m not in kept_back)

    def _answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.log.append((node, kind))
        self.before(node, kind)
        return super()._answer(message)

    @property
    def kinds(self):
        """The kinds of request, in the order they were first asked."""
        return list(dict.fromkeys(kind for _, kind in self.log))


class Federation:
    """Image folders of some clients, and runs on them."""

    def __init__(self, home):
        self.home = home
        self.grid = None

    def folder(self, client):
        return self.home / client

    def add_images(self, folder, class_names, seed=0):
        """Put an image into `folder` for each of the class names."""
        rng = np.random.default_rng([seed, *str(folder.name).encode()])
        for number, name in enumerate(class_names):
            (folder / name).mkdir(parents=True, exist_ok=True)
            grey = rng.integers(256, size=(SIZE, SIZE), dtype=np.uint8)
            Image.fromarray(grey).save(folder / name / f"{seed}-{number}.png")

    def node_config(self, client):
        return {"data-path": str(self.folder(client)), "client-id": client}

    def make_grid(self, clients, **settings):
        changes = {key.replace("_", "-"): value for key, value in settings.items()}
        self.run_config = DEFAULTS | EXACT | changes
        self.grid = NodesGrid(self.run_config)
        for number, client in enumerate(clients):
            self.grid.connect(101 + 7 * number, self.node_config(client))
        return self.grid

    def run(self, clients=(), grid=None, **settings):
        """Run the app; return the directory of the run."""
        grid = grid or self.make_grid(clients, **settings)
        main(grid, Context(1, 1, {}, RecordDict(), self.run_config))
        return self.home / "runs" / str(self.run_config["run-name"])

    def pooled(self, folders, labels):
        """Return the ridge classifier of all images in some folders, (64, C)."""
        rows, y = [], []
        for folder in folders:
            for path in sorted(folder.rglob("*.png")):
                rows.append(np.asarray(Image.open(path)).reshape(-1) / np.float32(255))
                y.append(labels.index(path.parent.name))
        Z = torch.tensor(np.array(rows, dtype=np.float32))
        return solve_ridge(RidgeStatistics.of(Z, torch.tensor(y), len(labels)), LAM)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    made = Federation(tmp_path)
    for client, class_names in CLINICS.items():
        made.add_images(made.folder(client), class_names)
    return made


@pytest.fixture
def summary_of():
    return lambda directory: json.loads((directory / "summary.json").read_text())


@pytest.fixture
def model_of():
    return lambda directory: load_model(directory / "model.safetensors")


@pytest.fixture
def clinics():
    return tuple(CLINICS)
