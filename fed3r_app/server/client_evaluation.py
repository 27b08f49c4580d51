"""What a model gets right on the clients' own images."""

from __future__ import annotations

from functools import partial

from flwr.app import RecordDict

from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.server.discovery_phase import admit_newcomers, clients_with_test_images
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    pack_arrays,
    pack_classifier,
    pack_feature_map,
)
from strategies import ClientEvaluation, Traffic, evaluate_on_clients


def evaluate_at_clients(
    context: RunContext, model: SavedModel
) -> ClientEvaluation | None:
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
    evaluation = ClientEvaluation(clients, context.config.max_retries)
    # One may be back as another node; it is too late for others.
    newcomers = partial(admit_newcomers, context, only=registry.clients)
    evaluate_on_clients(
        context.grid, registry, evaluation, request, timeout, traffic, newcomers
    )
    context.recorder.add_costs(up=traffic.up, down=traffic.down)
    return evaluation
