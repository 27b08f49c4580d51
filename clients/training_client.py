"""The client of the fine-tuning: trains the arrays it is sent on its own images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import Tensor

from fed3r_app.training.model import SoftmaxModel, load_arrays
from fed3r_app.training.sgd import (
    NotFiniteError,
    ReadBatch,
    TrainingSettings,
    measure,
    train,
)
from fed3r_app.wire import RECEIVED_CORRECT, RECEIVED_LOSS

Named = dict[str, Tensor]


@dataclass
class ControlVariates:
    """Scaffold's variates: the server's c and this client's c_i, by array name.

    Where the client has none, c_i starts at zero and ``fresh`` is true.
    """

    server: Named
    client: Named
    fresh: bool

    def correction(self) -> Named:
        """Return c - c_i."""
        return {name: self.server[name] - self.client[name] for name in self.server}

    def update(self, moved: Named, steps: int, lr: float) -> Named:
        """Move c_i as the paper's option II does; return by how much.

        c_i+ = c_i - c + (x - y) / (steps lr), with x - y the way that was moved.
        """
        change = {
            name: moved[name] / (max(steps, 1) * lr) - self.server[name]
            for name in self.server
        }
        self.client = {name: self.client[name] + change[name] for name in change}
        return change


@dataclass(eq=False)
class TrainingClient(NumPyClient):
    """Trains part of a model for some local epochs.

    Parameters
    ----------
    model : SoftmaxModel
        The model, with everything that does not come with ``fit`` already in place.
    names : sequence of str
        The arrays that train, in the order in which ``fit`` takes and returns them.
    read_batch, labels, settings
        The client's images or features, and how to train; see ``train``.
    read_unchanged : callable or None
        The same images, not augmented: where it is given, ``fit`` also says how the
        model that it is given fits them.
    seed : sequence of int
        Of the order of the images; another one for every client and round.
    control : ControlVariates or None
        With Scaffold; moved by ``fit``.
    """

    model: SoftmaxModel
    names: Sequence[str]
    read_batch: ReadBatch
    labels: Tensor
    settings: TrainingSettings
    seed: Sequence[int]
    control: ControlVariates | None = None
    read_unchanged: ReadBatch | None = None
    control_change: Named | None = field(default=None, init=False)

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the trained arrays, n and the mean training loss."""
        tensors = map(torch.from_numpy, parameters)
        start = dict(zip(self.names, tensors, strict=True))
        load_arrays(self.model, start)
        places = dict(self.model.named_parameters())
        trained = {name: places[name] for name in self.names}
        metrics: dict[str, Scalar] = {}
        if self.read_unchanged is not None:
            received = self.model, self.read_unchanged, self.labels, self.settings
            loss, correct = measure(*received)
            metrics = {RECEIVED_LOSS: loss, RECEIVED_CORRECT: correct}
        try:
            outcome = train(
                self.model,
                trained,
                self.read_batch,
                self.labels,
                self.settings,
                _generator(self.seed),
                self.control.correction() if self.control else None,
            )
        except NotFiniteError:
            if not metrics:
                raise
            # The server decides what comes of it; what was received goes back.
            lost = {"train-loss": math.nan, **metrics}
            return parameters, len(self.labels), lost
        end = {name: value.detach().cpu() for name, value in trained.items()}
        if not all(bool(torch.isfinite(value).all()) for value in end.values()):
            raise ValueError(
                f"Weights became infinite with lr = {self.settings.lr:g}. Lower lr."
            )
        arrays = [end[name].numpy().copy() for name in self.names]
        metrics["train-loss"] = outcome.loss
        if self.control:
            moved = {name: start[name] - end[name] for name in end}
            steps, lr = outcome.steps, self.settings.lr
            self.control_change = self.control.update(moved, steps, lr)
            metrics["fresh-control"] = int(self.control.fresh)
        return arrays, len(self.labels), metrics


def _generator(seed: Sequence[int]) -> torch.Generator:
    """Return a generator for a sequence of numbers, however alike two of them are."""
    mixed = np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) % 2**63)
