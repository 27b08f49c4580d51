"""A backbone with a softmax classifier on top, and which of its arrays train."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fed3r_app.core import Classifier
from fed3r_app.features.backbone import Backbone
from fed3r_app.features.weights import digest_arrays

CLASSIFIER, BACKBONE = "classifier.", "backbone."
BIAS = CLASSIFIER + "bias"


class SoftmaxModel(nn.Module):
    """logits = classifier(backbone(x)), from weight (C, d) and perhaps bias (C,).

    For ``lp`` the backbone is None: its features are the input.
    """

    def __init__(
        self, backbone: nn.Module | None, weight: Tensor, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.backbone = backbone if backbone is not None else nn.Identity()
        num_classes, d = weight.shape
        self.classifier = nn.Linear(d, num_classes, bias=bias is not None)
        with torch.no_grad():
            self.classifier.weight.copy_(weight)
            if bias is not None:
                self.classifier.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, C)."""
        logits: Tensor = self.classifier(self.backbone(x))
        return logits

    def trainable(self, finetune: str) -> dict[str, nn.Parameter]:
        """Return the parameters that ``full``, ``lp`` or ``feat`` trains, by name."""
        prefix = {"full": "", "lp": CLASSIFIER, "feat": BACKBONE}[finetune]
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if name.startswith(prefix)
        }

    def running_statistics(self) -> dict[str, Tensor]:
        """Return the running means and variances of batch norm, by name."""
        return {
            name: buffer
            for name, buffer in self.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        }

    def copies(self) -> dict[str, Tensor]:
        """Return copies of all that may train or move with the batches, by name."""
        moving = {**dict(self.named_parameters()), **self.running_statistics()}
        return {name: value.detach().clone() for name, value in moving.items()}


def trainable_copy(backbone: Backbone) -> nn.Module:
    """Return a network of the backbone that may be trained."""
    return copy.deepcopy(backbone.module).requires_grad_(True)


def tuned_backbone(backbone: Backbone, arrays: Mapping[str, Tensor]) -> Backbone:
    """Return the pretrained backbone with fine-tuned arrays in the place of its own.

    They are parameters and running statistics, named as in SoftmaxModel.
    """

    def build() -> nn.Module:
        module = copy.deepcopy(backbone.module)
        own = {name.removeprefix(BACKBONE): value for name, value in arrays.items()}
        load_arrays(module, own)
        return module

    spec = replace(backbone.spec, digest=digest_arrays(arrays))
    return replace(backbone, spec=spec, build=build)


def linear_layer_from(classifier: Classifier, intercept: bool) -> dict[str, Tensor]:
    """Return weight (C, d) and perhaps bias (C,) of a closed-form classifier.

    With an intercept the last feature is a column of ones, and its weights a bias.
    """
    rows, bias = classifier.W.T, classifier.bias
    if intercept:
        ones = rows[:, -1]
        rows, bias = rows[:, :-1], ones if bias is None else bias + ones
    layer = {CLASSIFIER + "weight": rows.float().contiguous()}
    if bias is not None:
        layer[BIAS] = bias.float().contiguous()
    return layer


def random_classifier(
    d: int, num_classes: int, intercept: bool, seed: int
) -> dict[str, Tensor]:
    """Return a classifier drawn as torch draws a linear layer."""
    bound = d**-0.5
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(num_classes, d).uniform_(-bound, bound, generator=generator)
    arrays = {CLASSIFIER + "weight": weight}
    if intercept:
        arrays[BIAS] = torch.zeros(num_classes)
    return arrays


def load_arrays(model: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    """Copy arrays into the parameters and buffers of the same names."""
    places = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in arrays.items():
        if name not in places or places[name].shape != value.shape:
            known = tuple(places[name].shape) if name in places else "no such array"
            raise ValueError(
                f"Array {name!r} must fit the model, got shape {tuple(value.shape)} "
                f"for {known}. Do server and clients use the same backbone?"
            )
        with torch.no_grad():
            places[name].copy_(value)
