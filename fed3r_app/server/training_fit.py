"""How well a model fits the clients' training images: one exchange with all of them.

It finds the softmax temperature of a closed-form classifier, and tells whether a
fine-tuned model is better than its start. No test image has a part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING

import torch
from flwr.app import RecordDict
from flwr.common.logger import log
from torch import Tensor

from fed3r_app.core import Classifier, FeatureMap, LeaveOneOut, Metrics
from fed3r_app.errors import RunError
from fed3r_app.server.context import RunContext
from fed3r_app.wire import (
    BACKBONE,
    Fit,
    RecordError,
    count_bytes,
    pack_arrays,
    pack_classifier,
    pack_temperatures,
    read_fit,
)
from strategies import Traffic, one_line, same_request

TEMPERATURE = "query.temperature"


@dataclass
class TrainingFit:
    """What clients said of a classifier on their training images.

    Attributes
    ----------
    losses : Tensor of shape (t,)
        Sums over all their images of the cross-entropies, at each temperature.
    by_client : dict
        What it gets right, by client.
    left_out : dict
        The same with each image left out of the classifier: the one that was solved
        from them gets its own images right more often than others.
    """

    losses: Tensor
    by_client: dict[str, Metrics] = field(default_factory=dict)
    left_out: dict[str, Metrics] = field(default_factory=dict)

    def add(self, client: str, fit: Fit) -> None:
        """Add a client's reply."""
        self.losses += fit.losses
        self.by_client[client] = fit.metrics
        self.left_out[client] = fit.left_out

    @property
    def mean_losses(self) -> list[float]:
        """The cross-entropies per image."""
        total = sum(metrics.total for metrics in self.by_client.values())
        return [float(loss) / max(total, 1) for loss in self.losses]


def accuracies(
    one: Mapping[str, Metrics], other: Mapping[str, Metrics]
) -> tuple[float | None, float | None]:
    """Return two models' accuracies on the images of the clients that said both.

    A client that speaks of another number of images does not count. None for none.
    """
    same = [c for c in one if c in other and one[c].total == other[c].total]
    total = sum(one[client].total for client in same)
    if not total:
        return None, None
    right = (sum(fit[client].correct for client in same) for fit in (one, other))
    first, second = right
    return first / total, second / total


def measure_fit(
    context: RunContext,
    classifier: Classifier,
    feature_map: FeatureMap,
    temperatures: Sequence[float],
    backbone_arrays: Mapping[str, Tensor] | None = None,
    leave_one_out: LeaveOneOut | None = None,
) -> TrainingFit:
    """Return how a classifier fits the images of all clients that reply.

    ``backbone_arrays`` are those of a fine-tuned backbone. The losses may be of each
    image left out of the classifier.
    """
    registry, traffic = context.registry, Traffic()
    asked = pack_temperatures(feature_map, temperatures, leave_one_out)
    request = context.request(asked)
    content = RecordDict({"arrays": pack_classifier(classifier), "config": request})
    if backbone_arrays:
        content[BACKBONE] = pack_arrays(dict(backbone_arrays))
    clients = {node: client for client, node in registry.nodes.items()}
    requests = same_request(clients, content, TEMPERATURE, traffic)
    fit = TrainingFit(torch.zeros(len(temperatures), dtype=torch.float64))
    timeout = context.config.round_timeout
    for reply in registry.stream_replies(context.grid, requests, timeout):
        client = clients.get(reply.metadata.src_node_id, "")
        try:
            if reply.has_error():
                raise RecordError(reply.error.reason)
            traffic.up += count_bytes(reply.content)
            said = read_fit(reply.content, len(temperatures))
            registry.check_count(client, said.metrics.total)
            fit.add(client, said)
        except RecordError as error:
            log(WARNING, "Client %s failed: %s", client, one_line(str(error)))
    context.recorder.add_costs(up=traffic.up, down=traffic.down)
    if not fit.by_client:
        raise RunError(
            "No client said how the model fits its training images, which "
            "temperature = 'auto' and guard = true need."
        )
    return fit
