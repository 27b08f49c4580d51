"""What a model gets right on the clients' own images."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import RecordDict

from fed3r_app.runs.model_file import SavedModel
from fed3r_app.server.context import RunContext
from fed3r_app.server.discovery_phase import clients_with_test_images
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    pack_arrays,
    pack_classifier,
    pack_feature_map,
)
from strategies import ClientEvaluation, Traffic, evaluate_on_clients


def evaluate_at_clients(
    context: RunContext,
    model: SavedModel,
    traffic: Traffic,
    newcomers: Callable[[], list[str]],
) -> ClientEvaluation | None:
    """Return what a model gets right on the clients' test images, where they have any.

    Where none has, their training images are asked for, if ``client-evaluation`` is
    set; None if there is nothing to evaluate on. What travels is added to ``traffic``;
    ``newcomers`` lets in whoever has come back.
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
    registry = context.registry
    clients, timeout = testers or registry.clients, context.config.round_timeout
    evaluation = ClientEvaluation(clients, context.config.max_retries)
    evaluate_on_clients(
        context.grid, registry, evaluation, request, timeout, traffic, newcomers
    )
    return evaluation


def evaluation_values(
    context: RunContext, evaluation: ClientEvaluation, accuracy: object
) -> dict[str, object]:
    """Return what the summary says of it; ``accuracy`` is that of the server or None.

    Where only clients have test images, what they measure is the run's accuracy.
    """
    metrics = evaluation.metrics
    values: dict[str, object] = {
        "clients_evaluated": len(evaluation.evaluated),
        "not_evaluated": list(evaluation.missing),
    }
    if not metrics.total:
        return values
    values["client_accuracy"] = metrics.accuracy
    if clients_with_test_images(context):
        values["client_test_images"] = metrics.total
        values["accuracy"] = metrics.accuracy if accuracy is None else accuracy
    return values
