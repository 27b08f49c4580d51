"""How class names travel: a client's own in its hello, everybody's in the questions."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ConfigRecord

from fed3r_app.greeting import LABELS
from fed3r_app.wire.layout import RecordError


def with_labels(config: ConfigRecord, labels: Sequence[str]) -> ConfigRecord:
    """Return a question's config that also tells the label space; () tells none."""
    told = {LABELS: list(labels)} if labels else {}
    return ConfigRecord({**dict(config.items()), **told})


def read_labels(config: ConfigRecord) -> tuple[str, ...] | None:
    """Return the class names in a config, or None where there are none."""
    labels = config.get(LABELS)
    if labels is None:
        return None
    if not isinstance(labels, list) or not all(
        isinstance(label, str) and label for label in labels
    ):
        raise RecordError(f"{LABELS} must be names of classes, got {labels!r}.")
    if len(set(labels)) < len(labels):
        raise RecordError(f"{LABELS} must differ, got one twice.")
    return tuple(str(label) for label in labels)
