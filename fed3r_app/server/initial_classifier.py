"""Where a fine-tuning starts: from a closed-form classifier, or from a random one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import Literal

import torch
from flwr.common.logger import log
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.runs.snapshots import Checkpoint
from fed3r_app.server.context import RunContext
from fed3r_app.server.statistics_phase import Solution
from fed3r_app.server.training_fit import TrainingFit, measure_fit
from fed3r_app.training.model import BIAS, linear_layer_from, random_classifier
from fed3r_app.words import plural

# Ten to the power of -3, -2.75, … 1: neighbours differ by a factor of 1.8, within which
# the loss is flat.
_TEMPERATURES = tuple(10 ** (step / 4) for step in range(-12, 5))
_OF_THE_PAPER = 0.1


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
    fit : TrainingFit or None
        How a closed-form start fits the clients' training images, where that was
        measured.
    """

    layer: dict[str, Tensor]
    present: Tensor
    feature_map: FeatureMap
    temperature: float
    fit: TrainingFit | None = None

    @property
    def has_bias(self) -> bool:
        """Whether the layer has a bias."""
        return BIAS in self.layer


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
    measure = temperature == "auto" or config.guard
    start = closed_form_start(context, solution, temperature, measure=measure)
    log(INFO, "Fine-tuning starts at temperature %.3g", start.temperature)
    return start


def closed_form_start(
    context: RunContext,
    solution: Solution,
    temperature: float | Literal["auto"],
    backbone_arrays: Mapping[str, Tensor] | None = None,
    *,
    measure: bool,
) -> InitialClassifier:
    """Return the start from a classifier in closed form.

    To ``measure`` it, every client says in one exchange how it fits its training
    images. "auto" is the temperature with the least cross-entropy on all of them.
    ``backbone_arrays`` are those of a fine-tuned backbone, whose solution it is.
    """
    classifier, feature_map = solution.classifier, solution.feature_map
    start = InitialClassifier(
        layer=linear_layer_from(classifier, feature_map.intercept),
        present=classifier.present,
        feature_map=replace(feature_map, intercept=False),
        temperature=1.0 if temperature == "auto" else temperature,
    )
    if not measure:
        return start
    tried = _TEMPERATURES if temperature == "auto" else (temperature,)
    # With few images the classifier fits each of them: an image says how sharp the
    # softmax should be only if it is left out.
    left_out = solution.leave_one_out()
    fit = measure_fit(
        context, classifier, feature_map, tried, backbone_arrays, left_out
    )
    losses = dict(zip(tried, fit.mean_losses, strict=True))
    best = min(tried, key=lambda each: losses[each])
    said = f"cross-entropy {losses[best]:.2f} at temperature {best:.3g}"
    if _OF_THE_PAPER in losses and best != _OF_THE_PAPER:
        said += f" ({losses[_OF_THE_PAPER]:.2f} at the paper's {_OF_THE_PAPER:g})"
    clients = plural(len(fit.by_client), "client")
    log(INFO, "%s, on the training images of %s", said, clients)
    return replace(start, temperature=best, fit=fit)
