"""What a model gets right on the clients' own images."""

from __future__ import annotations

from flwr.app import RecordDict

from fed3r_app.core import Metrics
from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    pack_arrays,
    pack_classifier,
    pack_feature_map,
)
from strategies import Traffic, evaluate_on_clients


def clients_with_test_images(context: RunContext) -> list[str]:
    """Return the clients that hold test images."""
    registry = context.registry
    return [client for client in registry.clients if registry.num_test_images[client]]


def evaluate_at_clients(context: RunContext, model: SavedModel) -> Metrics | None:
    """Return what a model gets right on the clients' test images, where they have any.

    Where none has, their training images are asked for, if ``client-evaluation`` is
    set; None if there is nothing to evaluate on.
    """
    testers = clients_with_test_images(context)
    if context.config.dp_epsilon:  # counts of private images are without noise
        return None
    if not testers and not context.config.client_evaluation:
        return None
    config = context.request(pack_feature_map(model.feature_map))
    config[ON_TEST_IMAGES] = bool(testers)
    arrays = pack_classifier(model.classifier)
    request = RecordDict({"arrays": arrays, "config": config})
    if model.backbone_arrays:
        request[BACKBONE] = pack_arrays(model.backbone_arrays)
    registry, traffic = context.registry, Traffic()
    clients, timeout = testers or registry.clients, context.config.round_timeout
    metrics = evaluate_on_clients(
        context.grid, registry, clients, request, timeout, traffic
    )
    context.recorder.add_costs(up=traffic.up, down=traffic.down)
    return metrics
