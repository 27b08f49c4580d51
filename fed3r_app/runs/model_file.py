"""The saved model: everything that is needed to classify an image."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.files.tensors import read_tensors, write_tensors
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
    tensors, about = read_tensors(path, MODEL, {1: upgrade_model})
    about["class_names"] = tuple(about["class_names"])
    about["feature_map"] = FeatureMap(**about["feature_map"])
    about["backbone"] = BackboneSpec(**about["backbone"])
    W, present = tensors.pop("W"), tensors.pop("present")
    classifier = Classifier(W, present, tensors.pop("bias", None))
    tuned = {name.removeprefix(_BACKBONE): value for name, value in tensors.items()}
    return SavedModel(classifier=classifier, backbone_arrays=tuned, **about)


def saved_backbone(model: SavedModel, feature_dim: int | None = None) -> Backbone:
    """Return the backbone that a model was made with, to the last weight.

    ``feature_dim`` is that of ``load_backbone``.
    """
    backbone = load_backbone(model.backbone.without_digest(), feature_dim)
    model.backbone.check_same(backbone.spec)
    if model.backbone_arrays:
        return tuned_backbone(backbone, model.backbone_arrays)
    return backbone
