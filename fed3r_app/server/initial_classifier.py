"""Where the fine-tuning starts: a closed-form classifier or a random one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from logging import INFO, WARNING

import torch
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import FeatureMap
from fed3r_app.errors import RunError
from fed3r_app.runs.recorder import Recorder
from fed3r_app.server.context import RunContext
from fed3r_app.server.fine_tuning_phase import Start
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.training.model import linear_layer_from, random_classifier
from fed3r_app.wire import RecordError, count_bytes, pack_temperatures, read_losses
from strategies import ClientRegistry, printable
from strategies.messaging import stream_replies

TEMPERATURE = "query.temperature"
# Ten to the power of -3, -2.75, … 1.
_TEMPERATURES = tuple(10 ** (step / 4) for step in range(-12, 5))


def random_start(context: RunContext) -> Start:
    """Return a random classifier; its softmax has temperature 1."""
    d, num_classes = context.backbone.dim, context.num_classes
    config = context.config
    return Start(
        classifier=random_classifier(d, num_classes, config.fit_intercept, config.seed),
        present=torch.ones(num_classes, dtype=torch.bool),
        feature_map=FeatureMap(d),
        temperature=1.0,
    )


def closed_form_start(solution: Solution, temperature: float) -> Start:
    """Return the softmax classifier whose weights are those of the solution."""
    W, present = solution.classifier
    return Start(
        classifier=linear_layer_from(W, solution.feature_map.intercept),
        present=present,
        feature_map=replace(solution.feature_map, intercept=False),
        temperature=temperature,
    )


def choose_temperature(
    context: RunContext,
    grid: Grid,
    registry: ClientRegistry,
    solution: Solution,
    recorder: Recorder,
) -> float:
    """Return the temperature with the least cross-entropy on all clients' images.

    Every client reports its sum of losses for a grid of temperatures, in one exchange.
    """
    request = context.request(pack_temperatures(solution.feature_map, _TEMPERATURES))
    content = RecordDict({"arrays": solution.arrays, "config": request})

    def requests() -> Iterator[Message]:
        for node in registry.nodes.values():
            recorder.add_costs(down=count_bytes(content))
            yield Message(content, dst_node_id=node, message_type=TEMPERATURE)

    totals = torch.zeros(len(_TEMPERATURES), dtype=torch.float64)
    answered = 0
    for reply in stream_replies(
        grid,
        requests(),
        timeout=context.config.round_timeout,
        in_flight=registry.in_flight,
    ):
        try:
            if reply.has_error():
                raise RecordError(reply.error.reason)
            recorder.add_costs(up=count_bytes(reply.content))
            totals += read_losses(reply.content, len(_TEMPERATURES))
            answered += 1
        except RecordError as error:
            client = registry.client_of(reply.metadata.src_node_id)
            log(WARNING, "Client %s failed: %s", client, printable(str(error)))
    if not answered:
        raise RunError("temperature = 'auto' needs replies, got none.")
    best = _TEMPERATURES[int(totals.argmin())]
    log(INFO, "temperature = %.3g, measured on %d clients", best, answered)
    return best
