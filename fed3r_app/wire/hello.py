"""The first exchange: what a client says of itself, as records, and back.

Class names travel with it: a client's own in its hello, those of the whole run in the
requests, as does how images are read. Packing needs no torch: a real node says hello in
a process that does nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.wire import RecordError
from fed3r_app.wire.parity import Parity, add_parity, read_parity

if TYPE_CHECKING:
    from fed3r_app.core import FeatureMoments

LABELS = "labels"
_RECIPE, _IMAGE_SIZE = "recipe", "image-size"


@dataclass(frozen=True)
class Hello:
    """What a client says of itself."""

    client_id: str  # names the client across runs
    num_partitions: int  # how many clients it believes there are; 0 if it can't know
    moments: FeatureMoments | None = None  # of its features, where asked for
    # Its classes, where its images are its own; where the run config names all, just
    # those that are not among them.
    class_names: tuple[str, ...] = ()
    num_test_images: int = 0  # that it holds besides, for evaluations
    parity: Parity | None = None  # beside the moments, which need the backbone


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    config = ConfigRecord(
        {"client-id": hello.client_id, "num-partitions": hello.num_partitions}
    )
    content = RecordDict({"config": config})
    if hello.class_names:
        config[LABELS] = list(hello.class_names)
    if hello.num_test_images:
        config["num-test-images"] = hello.num_test_images
    if hello.moments is not None:
        config["num-examples"] = hello.moments.n
        config["squared-norms"] = hello.moments.squared_norms
        content["arrays"] = ArrayRecord({"sum": Array(hello.moments.total.numpy())})
    add_parity(config, hello.parity)
    return content


def read_hello(content: RecordDict) -> Hello:
    """Return the hello in a reply's records, or raise RecordError."""
    config = content.config_records.get("config", ConfigRecord())
    client_id = config.get("client-id")
    if not isinstance(client_id, str) or not client_id:
        raise RecordError(f"client-id must be a name, got {client_id!r}.")
    return Hello(
        client_id,
        _read_number(config, "num-partitions"),
        _read_moments(content, config),
        read_labels(config) or (),
        _read_number(config, "num-test-images", 0),
        read_parity(config),
    )


def _read_number(config: ConfigRecord, name: str, default: int | None = None) -> int:
    number = config.get(name, default)
    if not isinstance(number, int) or number < 0:
        raise RecordError(f"{name} must be >= 0, got {number!r}.")
    return number


def _read_moments(content: RecordDict, config: ConfigRecord) -> FeatureMoments | None:
    if "arrays" not in content.array_records:
        return None
    import numpy as np
    import torch

    from fed3r_app.core import FeatureMoments
    from fed3r_app.wire.layout import read_array

    total = read_array(content.array_records["arrays"], "sum")
    squared_norms = config.get("squared-norms")
    if total.ndim != 1 or total.dtype != np.float64 or not np.isfinite(total).all():
        raise RecordError(f"sum must be finite float64 (d,), got {total.dtype}.")
    if not isinstance(squared_norms, float) or not 0 <= squared_norms < math.inf:
        raise RecordError(f"squared-norms must be >= 0, got {squared_norms!r}.")
    n = _read_number(config, "num-examples")
    return FeatureMoments(n, torch.from_numpy(total), squared_norms)


def with_reading(config: ConfigRecord, recipe: int, image_size: int) -> ConfigRecord:
    """Return a request's config with how images are read, and their size."""
    reading = {_RECIPE: recipe, _IMAGE_SIZE: image_size}
    return ConfigRecord({**dict(config.items()), **reading})


def read_reading(config: ConfigRecord) -> tuple[int, int] | None:
    """Return recipe and image size in a request's config, where they are there."""
    if _RECIPE not in config:
        return None
    return _read_number(config, _RECIPE), _read_number(config, _IMAGE_SIZE)


def with_labels(config: ConfigRecord, labels: Sequence[str]) -> ConfigRecord:
    """Return a request's config with the label space in it; () for none."""
    added = {LABELS: list(labels)} if labels else {}
    return ConfigRecord({**dict(config.items()), **added})


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
