"""Pictures classified with the model of a run, which is loaded once and kept."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from fed3r_app.ui.results import RunFiles, Stamp, stamp_of

if TYPE_CHECKING:
    from fed3r_app.runs.prediction import Predictor

_MOST_CLASSES = 5


class Pictures:
    """Classifies pictures one after the other, with one model in memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loaded: tuple[object, Predictor] | None = None

    def classify(self, run: RunFiles, picture: bytes) -> list[tuple[str, float]]:
        """Return the classes of a picture with the highest scores, best first.

        The bytes of the picture are read as `fed3r predict` reads a file.
        """
        # torch takes seconds to import, and most who look at runs need none.
        from fed3r_app.data.images import EncodedImages
        from fed3r_app.data.reading import UnreadableImage

        with self._lock:
            predictor = self._predictor(run)
            try:
                return predictor.best(EncodedImages([picture], [0]), _MOST_CLASSES)
            except UnreadableImage as error:
                reason = str(error).partition("got: ")[2]
                raise ValueError(f"This file can't be read: {reason}") from error

    def _predictor(self, run: RunFiles) -> Predictor:
        """Return the model of a run as it is now."""
        from fed3r_app.runs.prediction import Predictor

        path = run.directory.model_path
        key: tuple[object, Stamp] = (path, stamp_of(path))
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # two of them may be more than there is memory for
            self._loaded = key, Predictor(run.directory)
        return self._loaded[1]
