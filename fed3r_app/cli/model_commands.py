"""`fed3r predict`: classify images with the model of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fed3r_app.cli import arguments as args
from fed3r_app.errors import SettingsError
from fed3r_app.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor

    from fed3r_app.features.backbone import Backbone
    from fed3r_app.runs.model_file import SavedModel


commands = args.Group()


def _positive(text: str) -> int:
    """Return the number in an option that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


@commands.command(
    "predict",
    "classify images with the model of a run",
    args.path("run_dir", "RUN_DIR", "folder of a finished run"),
    args.path("images", "IMAGE", "image files", nargs="+"),
    args.argument(
        "--top",
        "classes to print for each image (default: 3)",
        metavar="K",
        type=_positive,
        default=3,
    ),
)
def predict(options: argparse.Namespace) -> int:
    """Print a line for each image: its best classes with their scores."""
    # torch takes seconds to import: `fed3r show` does without it.
    from fed3r_app.runs.model_file import load_model, saved_backbone

    model = load_model(_model_path(options.run_dir))
    backbone = saved_backbone(model)
    failed = 0
    for path in options.images:
        try:
            scores = model.scores(_features(backbone, path))[0]
        except (OSError, ValueError) as error:
            failed = fail(error)  # and the others are classified
        else:
            print(f"{path}: {_best(model, scores, options.top)}", flush=True)
    return failed


def _model_path(run_dir: Path) -> Path:
    """Return where the model of a run is, if it is there."""
    path = RunDirectory(run_dir).model_path
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} must be the folder of a finished run, got no {path.name} there."
        )
    return path


def _features(backbone: Backbone, path: Path) -> Tensor:
    """Return the features (1, d) of the image in a file."""
    import numpy as np

    from fed3r_app.data.images import FileImages
    from fed3r_app.features.backbone import resolve_device
    from fed3r_app.features.extraction import extract_features

    if not path.is_file():
        raise FileNotFoundError(f"{path} must be an image file, got no file there.")
    image, device = FileImages(Path(), [str(path)], [0]), resolve_device("auto")
    return extract_features(backbone, image, np.array([0]), device=device)


def _best(model: SavedModel, scores: Tensor, top: int) -> str:
    """Return the classes with the highest of the scores (C,), best first."""
    number = min(top, int(model.present.sum()))
    values, classes = scores.topk(number)
    return ", ".join(
        f"{model.class_names[label]} ({value:.3f})"
        for value, label in zip(values.tolist(), classes.tolist(), strict=True)
    )


def fail(error: Exception) -> int:
    """Print an error on one line, and return the exit code for it."""
    print(f"fed3r: {' '.join(str(error).split())}", file=sys.stderr)
    return 2 if isinstance(error, SettingsError) else 1
