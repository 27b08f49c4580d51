"""The federated optimisers by name, and the state that a checkpoint must hold."""

from __future__ import annotations

from logging import WARNING

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import NDArray
from flwr.common.logger import log
from flwr.serverapp.strategy import FedAvg, FedAvgM

from strategies.scaffold import Scaffold


def make_optimizer(
    name: str, *, server_lr: float, server_momentum: float, num_clients: int
) -> FedAvg:
    """Return Flower's FedAvg or FedAvgM, or Scaffold, which needs K = num_clients."""
    if name == "scaffold":
        return Scaffold(num_clients, server_lr)
    if name == "fedavg" and server_lr == 1:
        return FedAvg(min_train_nodes=1, min_available_nodes=1)
    return FedAvgM(
        min_train_nodes=1,
        min_available_nodes=1,
        server_learning_rate=server_lr,
        server_momentum=server_momentum if name == "fedavgm" else 0.0,
    )


def move_model(optimizer: FedAvg, arrays: ArrayRecord) -> None:
    """Tell an optimiser that the model is elsewhere now; its momentum goes on."""
    if isinstance(optimizer, FedAvgM):
        optimizer.current_arrays = arrays


def optimizer_state(optimizer: FedAvg) -> dict[str, NDArray]:
    """Return what an optimiser carries from round to round, by name."""
    if isinstance(optimizer, Scaffold):
        return dict(optimizer.control)
    if isinstance(optimizer, FedAvgM) and optimizer.momentum_vector is not None:
        return {str(i): np.asarray(v) for i, v in enumerate(optimizer.momentum_vector)}
    return {}


def restore_optimizer(
    optimizer: FedAvg, arrays: ArrayRecord, state: dict[str, NDArray]
) -> None:
    """Put an optimiser where it was, with the model's arrays of that moment.

    Not Scaffold: the clients' variates end with a run of Flower. The server's is their
    mean; kept without them it would pull all that follows off the optimum.
    """
    if isinstance(optimizer, Scaffold):
        log(WARNING, "Scaffold's control variates all start at zero again")
    elif isinstance(optimizer, FedAvgM):
        optimizer.current_arrays = arrays
        if state:
            optimizer.momentum_vector = [state[str(i)] for i in range(len(state))]
