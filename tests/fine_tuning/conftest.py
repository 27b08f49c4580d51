"""The whole app in this process, with a grid that notes and disturbs what travels."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from fed3r_app.client_app import app as client_app
from fed3r_app.config import DEFAULTS
from fed3r_app.data import load_dataset
from fed3r_app.runs.model_file import load_model
from fed3r_app.server_app import main
from simulation.engines.inline import InlineGrid

RUN = 1
# Features that cost nothing: 64 pixels of a digit.
PIXELS = {"dataset": "digits", "backbone": "pixels", "image-size": 8}


@dataclass
class Exchange:
    """A request, its reply (None for an error) and who was asked."""

    client: int
    kind: str
    request: RecordDict
    reply: RecordDict | None

    @property
    def round(self):
        return self.request.config_records["config"]["server-round"]

    def sent(self, record="arrays"):
        return named(self.request.array_records[record])

    def received(self, record="arrays"):
        return named(self.reply.array_records[record])

    @property
    def num_examples(self):
        return self.reply.metric_records["metrics"]["num-examples"]


class SpyGrid(InlineGrid):
    """Keeps every exchange, and stands in its way where asked to.

    ``disturb(message, context)`` comes before each request and may change it, or the
    client's context, or raise, which the server sees as an error reply;
    ``tamper(context, request, reply)`` may change the records of a reply; requests
    for which ``gone(message)`` is true are lost. With ``shuffle`` replies come in
    another order.
    """

    def __init__(
        self,
        num_clients,
        run_config,
        disturb=None,
        tamper=None,
        gone=None,
        shuffle=None,
    ):
        super().__init__(client_app, num_clients, run_config)
        self.exchanges: list[Exchange] = []
        self._disturb = disturb
        self._tamper = tamper
        self._gone = gone or (lambda message: False)
        self._random = None if shuffle is None else np.random.default_rng(shuffle)

    def push_messages(self, messages):
        # As Flower does for a node that is gone: dropped, unsaid.
        return super().push_messages(m for m in messages if not self._gone(m))

    def pull_messages(self, message_ids):
        ids = list(message_ids)
        if self._random is not None:
            ids = [ids[i] for i in self._random.permutation(len(ids))]
        return super().pull_messages(ids)

    def _answer(self, message):
        context = self._contexts[message.metadata.dst_node_id]
        request = RecordDict(dict(message.content.items()))
        if self._disturb:
            self._client_app = _disturbed(self._disturb)
        reply = super()._answer(message)
        if self._tamper and not reply.has_error():
            self._tamper(context, request, reply.content)
        self.exchanges.append(
            Exchange(
                client=context.node_config["partition-id"],
                kind=message.metadata.message_type,
                request=request,
                # Copied: the server takes records out of a reply.
                reply=None
                if reply.has_error()
                else RecordDict(dict(reply.content.items())),
            )
        )
        return reply


def _disturbed(disturb):
    def app(message, context):
        disturb(message, context)
        return client_app(message, context)

    return app


@dataclass
class Outcome:
    """The files of a run, and what travelled."""

    directory: Path
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def summary(self):
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def metrics(self):
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()[1:]
        return [json.loads(line) for line in lines]

    @property
    def tuning(self):
        """The lines of the fine-tuning."""
        return [line for line in self.metrics if line.get("phase") == "finetune"]

    @property
    def model(self):
        return load_model(self.directory / "model.safetensors")

    @property
    def trained(self):
        """The exchanges of the fine-tuning."""
        return [each for each in self.exchanges if each.kind == "train"]

    def sampler(self):
        """Return the clients of each round, sorted."""
        rounds = {}
        for each in self.trained:
            rounds.setdefault(each.round, []).append(each.client)
        return {number: sorted(clients) for number, clients in rounds.items()}


@pytest.fixture(scope="session")
def _cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch, _cache):
    """Folders of our own, an identity for messages, and no pictures: they are slow."""
    monkeypatch.setenv("FED3R_CACHE_DIR", str(_cache))
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr("fed3r_app.runs.recorder.plot_curves", lambda *_: None)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)


@pytest.fixture
def run(tmp_path):
    """Run the app in this process; an error leaves its exchanges in ``run.last``."""

    def start(
        num_clients=4,
        *,
        disturb: Callable | None = None,
        tamper: Callable | None = None,
        gone: Callable | None = None,
        shuffle: int | None = None,
        **settings,
    ):
        changes = {key.replace("_", "-"): value for key, value in settings.items()}
        config = DEFAULTS | PIXELS | {"run-name": "it", "eval-every": 1} | changes
        grid = SpyGrid(num_clients, config, disturb, tamper, gone, shuffle)
        start.last = Outcome(tmp_path / "runs" / config["run-name"], grid.exchanges)
        main(grid, Context(RUN, RUN, {}, RecordDict(), config))
        return start.last

    return start


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory):
    """Return a folder of digits 0 to 3: 7 images of each to train on, 3 to test."""
    folder = tmp_path_factory.mktemp("few-digits")
    digits = load_dataset("digits", "").train
    for digit in range(4):
        for i, row in enumerate(np.flatnonzero(digits.labels == digit)[:10]):
            path = folder / ("train" if i < 7 else "test") / str(digit)
            path.mkdir(parents=True, exist_ok=True)
            digits.image(int(row)).save(path / f"{i:02d}.png")
    return folder


@pytest.fixture
def few_images(few_digits):
    """Return the settings of a run on the few digits at 32 px, by a small network.

    It has batch norms, a last feature map of 1 x 1, and random weights: good enough
    for everything but accuracies.
    """
    return {
        "dataset": "imagefolder",
        "data_path": str(few_digits),
        "backbone": "shufflenet_v2_x0_5",
        "weights": "random",
        "image_size": 32,
        "batch_size": 8,
        "clients_per_round": 0,
        "ridge_lambda": 0.1,
        "rounds": 2,
    }


@pytest.fixture
def few_photos(few_images):
    """Return the same with the network of the default run."""
    return few_images | {"backbone": "mobilenet_v2", "weights": "packaged"}


@pytest.fixture
def grey_folder(tmp_path):
    """Make a folder with so many grey images of each of some classes."""

    def make(**counts):
        rng = np.random.default_rng(0)
        for part, factor in (("train", 1), ("test", 0)):
            for label, (name, count) in enumerate(counts.items()):
                path = tmp_path / "grey" / part / name
                path.mkdir(parents=True)
                for i in range(count if factor else 2):
                    grey = rng.uniform(0, 100, size=(8, 8))
                    grey[:, 4 * (label % 2) : 4 * (label % 2) + 4] += 100
                    Image.fromarray(grey.astype(np.uint8)).save(path / f"{i}.png")
        return str(tmp_path / "grey")

    return make


def named(record):
    return {name: array.numpy() for name, array in record.items()}


def assert_same_model(one, other):
    """Compare two saved models bit for bit."""
    assert torch.equal(one.W, other.W)
    assert one.backbone_arrays.keys() == other.backbone_arrays.keys()
    for name, value in one.backbone_arrays.items():
        assert torch.equal(value, other.backbone_arrays[name]), name


@pytest.fixture
def same_model():
    return assert_same_model
