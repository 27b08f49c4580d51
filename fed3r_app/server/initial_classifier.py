"""Where a fine-tuning starts: from a closed-form classifier, or from a random one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from logging import INFO, WARNING

import torch
from flwr.app import RecordDict
from flwr.common.logger import log
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.errors import RunError
from fed3r_app.runs.snapshots import Checkpoint
from fed3r_app.server.context import RunContext
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.training.model import CLASSIFIER, linear_layer_from, random_classifier
from fed3r_app.wire import (
    RecordError,
    count_bytes,
    pack_classifier,
    pack_temperatures,
    read_losses,
)
from strategies import Traffic, printable, same_request

TEMPERATURE = "query.temperature"
# Ten to the power of -3, -2.75, … 1: neighbours differ by a factor of 1.8, within which
# the loss is flat.
_TEMPERATURES = tuple(10 ** (step / 4) for step in range(-12, 5))


@dataclass(frozen=True, eq=False)
class InitialClassifier:
    """Where the fine-tuning starts.

    Parameters
    ----------
    layer : dict
        Weight (C, d) and perhaps bias (C,) of a linear layer.
    present : Tensor of shape (C,), bool
        Classes that may be predicted.
    feature_map : FeatureMap
        From backbone features to the classifier's input, without a ones column.
    temperature : float
        Of the softmax.
    """

    layer: dict[str, Tensor]
    present: Tensor
    feature_map: FeatureMap
    temperature: float

    @property
    def has_bias(self) -> bool:
        """Whether the layer has a bias."""
        return CLASSIFIER + "bias" in self.layer


def initial_classifier(
    context: RunContext, solution: Solution | None, earlier: Checkpoint | None
) -> InitialClassifier:
    """Return where the fine-tuning of a run starts.

    From its closed form; without one, from a random classifier with temperature 1. In
    a resumed run the temperature stays what it was.
    """
    config, d, num_classes = context.config, context.backbone.dim, context.num_classes
    if solution is None:
        return InitialClassifier(
            layer=random_classifier(d, num_classes, config.fit_intercept, config.seed),
            present=torch.ones(num_classes, dtype=torch.bool),
            feature_map=FeatureMap(d),
            temperature=1.0,
        )
    temperature = config.temperature
    if temperature == "auto" and earlier:
        temperature = float(earlier.numbers["temperature"] or 1)
    elif temperature == "auto":
        temperature = choose_temperature(context, solution)
    classifier, feature_map = solution.classifier, solution.feature_map
    return InitialClassifier(
        layer=linear_layer_from(classifier, feature_map.intercept),
        present=classifier.present,
        feature_map=replace(feature_map, intercept=False),
        temperature=temperature,
    )


def choose_temperature(context: RunContext, solution: Solution) -> float:
    """Return the temperature with the least cross-entropy on all clients' images.

    Every client reports its sum of losses for a grid of temperatures, in one exchange.
    """
    registry, traffic = context.registry, Traffic()
    request = context.request(pack_temperatures(solution.feature_map, _TEMPERATURES))
    arrays = pack_classifier(solution.classifier)
    content = RecordDict({"arrays": arrays, "config": request})
    requests = same_request(registry.nodes.values(), content, TEMPERATURE, traffic)
    timeout = context.config.round_timeout
    totals = torch.zeros(len(_TEMPERATURES), dtype=torch.float64)
    answered = 0
    for reply in registry.stream_replies(context.grid, requests, timeout):
        try:
            if reply.has_error():
                raise RecordError(reply.error.reason)
            traffic.up += count_bytes(reply.content)
            totals += read_losses(reply.content, len(_TEMPERATURES))
            answered += 1
        except RecordError as error:
            client = registry.client_of(reply.metadata.src_node_id)
            log(WARNING, "Client %s failed: %s", client, printable(str(error)))
    context.recorder.add_costs(up=traffic.up, down=traffic.down)
    if not answered:
        raise RunError("temperature = 'auto' needs replies, got none.")
    best = _TEMPERATURES[int(totals.argmin())]
    log(INFO, "temperature = %.3g, measured on %d clients", best, answered)
    return best
