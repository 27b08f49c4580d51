"""The saved model: everything that is needed to classify an image."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor

from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.files.tensors import of_kind, read_tensors, write_tensors
from fed3r_app.runs.formats import MODEL, upgrade_model
from fed3r_app.training.model import tuned_backbone

_TENSORS = ("classifier", "backbone_arrays")
_BACKBONE = "backbone/"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A classifier of C classes, and how the features it wants are made."""

    classifier: Classifier  # on the mapped features
    class_names: tuple[str, ...]
    method: str
    ridge_lambda: float | None  # what W was solved with; None where there was none
    backbone: BackboneSpec  # of the features, before any fine-tuning
    feature_map: FeatureMap  # from the backbone's features to those that W is for
    # Fine-tuned arrays of the backbone; empty for the pretrained one.
    backbone_arrays: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num_classes = len(self.class_names)
        if self.W.shape != (self.feature_map.dim, num_classes):
            raise ValueError(
                f"W must have shape (d, C) = ({self.feature_map.dim}, {num_classes}), "
                f"got {tuple(self.W.shape)}."
            )
        present = self.present
        if present.shape != (num_classes,) or present.dtype != torch.bool:
            raise ValueError(
                f"present must be bool of shape ({num_classes},), got "
                f"{present.dtype} of shape {tuple(present.shape)}."
            )

    @property
    def W(self) -> Tensor:
        """Weights (d, C) of the classifier."""
        return self.classifier.W

    @property
    def present(self) -> Tensor:
        """Classes (C,) that had training samples; the others are never predicted."""
        return self.classifier.present

    def scores(self, Z: Tensor) -> Tensor:
        """Return the scores (n, C) of features Z (n, d) of the backbone.

        A class without training samples scores -inf.
        """
        return self.classifier.scores(self.feature_map(Z))


def save_model(path: Path, model: SavedModel) -> None:
    """Write a model to one file; the one before it stays until this one is whole."""
    tuned = {_BACKBONE + name: value for name, value in model.backbone_arrays.items()}
    about = {
        field.name: getattr(model, field.name)
        for field in fields(model)
        if field.name not in _TENSORS
    } | {"feature_map": asdict(model.feature_map), "backbone": asdict(model.backbone)}
    classifier = {"W": model.W, "present": model.present}
    if model.classifier.bias is not None:
        classifier["bias"] = model.classifier.bias
    write_tensors(path, MODEL, classifier | tuned, about)


def load_model(path: Path) -> SavedModel:
    """Return the model in a file, bit for bit as it was saved."""
    with of_kind(path, MODEL):
        tensors, about = read_tensors(path, MODEL, {1: upgrade_model})
        about["class_names"] = tuple(about["class_names"])
        about["feature_map"] = FeatureMap(**about["feature_map"])
        about["backbone"] = BackboneSpec(**about["backbone"])
        W, present = tensors.pop("W"), tensors.pop("present")
        classifier = Classifier(W, present, tensors.pop("bias", None))
        tuned = {name.removeprefix(_BACKBONE): value for name, value in tensors.items()}
        model = SavedModel(classifier=classifier, backbone_arrays=tuned, **about)
        _check_types(model)
        return model


def _check_types(model: SavedModel) -> None:
    """Raise TypeError unless a model's parts are what they should be.

    Its file may come from anybody, and Python believes what it reads.
    """
    parts = {**vars(model.feature_map), **vars(model.backbone), "method": model.method}
    kinds = {
        **get_type_hints(FeatureMap),
        **get_type_hints(BackboneSpec),
        "method": str,
    }
    for name, value in parts.items():
        kind = (int, float) if kinds[name] is float else kinds[name]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TypeError(f"{name} is {value}, which no seed or size is")
    if not all(isinstance(name, str) for name in model.class_names):
        raise TypeError("class_names are not texts")
    if not isinstance(model.ridge_lambda, float | int | None):
        raise TypeError(f"ridge_lambda is {model.ridge_lambda!r}")
    bias = model.classifier.bias
    if bias is not None and bias.shape != model.present.shape:
        raise TypeError(f"bias has shape {tuple(bias.shape)}")
    kinds_of_W = (torch.float64, torch.float32)
    if any(x is not None and x.dtype not in kinds_of_W for x in (model.W, bias)):
        raise TypeError("W or bias are not float64")


def saved_backbone(model: SavedModel, feature_dim: int | None = None) -> Backbone:
    """Return the backbone that a model was made with, to the last weight.

    ``feature_dim`` is that of ``load_backbone``.
    """
    backbone = load_backbone(model.backbone.without_digest(), feature_dim)
    model.backbone.check_same(backbone.spec)
    if model.backbone_arrays:
        return tuned_backbone(backbone, model.backbone_arrays)
    return backbone
