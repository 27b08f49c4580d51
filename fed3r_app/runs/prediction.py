"""Images classified with the model of a run, as a user has them: one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fed3r_app.data.images import ImageSet
from fed3r_app.features.backbone import resolve_device
from fed3r_app.features.extraction import extract_features
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.model_file import load_model, saved_backbone

_FIRST = np.array([0])


class Predictor:
    """The model of a run with its backbone, both loaded."""

    def __init__(self, run: RunDirectory) -> None:
        path: Path = run.model_path
        if not path.is_file():
            raise FileNotFoundError(
                f"{run.path} must be the folder of a finished run, got no {path.name} "
                "there."
            )
        self._model = load_model(path)
        self._backbone = saved_backbone(self._model)
        self._device = resolve_device("auto")

    def best(self, image: ImageSet, most: int) -> list[tuple[str, float]]:
        """Return the classes of the first image with the highest scores, best first."""
        model = self._model
        features = extract_features(self._backbone, image, _FIRST, device=self._device)
        scores = model.scores(features)[0]
        values, labels = scores.topk(min(most, int(model.present.sum())))
        names = [model.class_names[label] for label in labels.tolist()]
        return list(zip(names, values.tolist(), strict=True))
