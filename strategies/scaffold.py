"""Scaffold: control variates against the drift of heterogeneous clients."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import NDArray
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fed3r_app.wire import CONTROL

Named = dict[str, NDArray]


class Scaffold(FedAvg):
    """Averages models and control variates uniformly over the clients of a round.

    With x the model, c the server's variate, S the clients of a round and K all of
    them (``num_clients``): x <- x + server_lr mean(y_i - x), c <- c + |S|/K mean(dc_i).
    The clients keep their own c_i and send its change dc_i beside y_i.
    """

    def __init__(self, num_clients: int, server_lr: float = 1.0) -> None:
        super().__init__(min_train_nodes=1, min_available_nodes=1)
        self._num_clients = num_clients
        self._server_lr = server_lr
        self._model: Named = {}
        self.control: Named = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model with the server's variate beside it."""
        self._model = _named(arrays)
        if not self.control:
            self.control = {k: np.zeros_like(v) for k, v in self._model.items()}
        control = _record(self.control)
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content[CONTROL] = control
            yield message

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the model and the variate by the means of the replies."""
        good = [reply for reply in replies if not reply.has_error()]
        # Flower averages what is in a reply: these are not for it.
        changes = [_named(reply.content.array_records[CONTROL]) for reply in good]
        for reply in good:
            del reply.content[CONTROL]
        # Flower checks the replies and averages their metrics; its mean of the models
        # is weighted by their samples, Scaffold's is not.
        arrays, metrics = super().aggregate_train(server_round, good)
        if arrays is None:
            return None, metrics
        models = [_named(reply.content.array_records["arrays"]) for reply in good]
        share = len(good) / self._num_clients
        for name, value in self.control.items():
            step = np.mean([change[name] for change in changes], axis=0)
            self.control[name] = value + share * step
        return _record({k: self._moved(k, models) for k in self._model}), metrics

    def _moved(self, name: str, models: list[Named]) -> NDArray:
        old = self._model[name]
        mean = np.mean([model[name] for model in models], axis=0)
        return np.asarray(old + self._server_lr * (mean - old), dtype=old.dtype)


def _named(record: ArrayRecord) -> Named:
    return {name: array.numpy() for name, array in record.items()}


def _record(named: Named) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(v)) for name, v in named.items()})
