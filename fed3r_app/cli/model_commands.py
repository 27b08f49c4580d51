"""`fed3r predict`: classify images with the model of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from fed3r_app.cli import arguments as args
from fed3r_app.runs.listing import find_run
from fed3r_app.words import printable

commands = args.Group()


def _positive(text: str) -> int:
    """Return the number in an option that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


@commands.command(
    "predict",
    "classify images with the model of a run",
    args.RUN,
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
    from fed3r_app.data.images import FileImages
    from fed3r_app.runs.prediction import Predictor

    predictor = Predictor(find_run(options.run))
    failed = 0
    for path in options.images:
        try:
            if not path.is_file():
                raise FileNotFoundError(f"{path} must be an image file, got no file.")
            best = predictor.best(FileImages(Path(), [str(path)], [0]), options.top)
        except (OSError, ValueError) as error:
            failed = args.fail(error)  # and the others are classified
        else:
            classes = ", ".join(
                f"{printable(name)} ({score:.3f})" for name, score in best
            )
            print(f"{path}: {classes}", flush=True)
    return failed
