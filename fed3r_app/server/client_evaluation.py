"""The accuracy of a model on the clients' own images."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.runs.recorder import Recorder
from fed3r_app.server.context import RunContext
from fed3r_app.wire import (
    BACKBONE,
    ON_TEST_IMAGES,
    pack_arrays,
    pack_classifier,
    pack_feature_map,
)
from strategies import ClientRegistry, evaluate_on_clients


@dataclass(frozen=True)
class ClientAccuracy:
    """The share of some clients' images that a model gets right."""

    accuracy: float
    num_images: int
    evaluation_set: bool  # test images, not those it was trained on


def accuracy_at_clients(
    context: RunContext,
    grid: Grid,
    registry: ClientRegistry,
    recorder: Recorder,
    classifier: tuple[Tensor, Tensor],
    feature_map: FeatureMap,
    backbone: dict[str, Tensor] | None = None,
) -> ClientAccuracy | None:
    """Return what a model gets right on the clients' test images, where they have any.

    Where none has, their training images are asked for, if ``client-evaluation`` is
    set; None if there is nothing to evaluate on.

    Parameters
    ----------
    classifier : (W, present)
        Tensors (d, C) and (C,).
    feature_map : FeatureMap
        From the backbone's features to those that W is for.
    backbone : dict or None
        Fine-tuned arrays of the backbone.
    """
    testers = [
        client for client in registry.clients if registry.num_test_images[client]
    ]
    if context.config.dp_epsilon:  # counts of private images are without noise
        return None
    if not testers and not context.config.client_evaluation:
        return None
    config = context.request(pack_feature_map(feature_map))
    config[ON_TEST_IMAGES] = bool(testers)
    request = RecordDict({"arrays": pack_classifier(*classifier), "config": config})
    if backbone:
        request[BACKBONE] = pack_arrays(backbone)
    metrics = evaluate_on_clients(
        grid,
        registry,
        testers or registry.clients,
        request,
        context.config.round_timeout,
    )
    if metrics is None:
        return None
    up, down, total, accuracy = (
        float(metrics[key])  # type: ignore[arg-type]
        for key in ("upload-bytes", "download-bytes", "num-examples", "accuracy")
    )
    recorder.add_costs(up=int(up), down=int(down))
    return ClientAccuracy(accuracy, int(total), evaluation_set=bool(testers))
