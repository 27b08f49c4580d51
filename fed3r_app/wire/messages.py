"""Small records: classifiers, digests of contributions, feature maps; their sizes.

A contribution's digest travels beside its statistics. A feature map travels as a few
numbers, never as its matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import NamedTuple, get_type_hints

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.wire import RecordError
from fed3r_app.wire.parity import Parity, add_parity
from fed3r_app.wire.validation import (
    MOST_FEATURES,
    MOST_RANDOM_FEATURES,
    AnyArray,
    read_whole,
    shown,
)

# A fine-tuned backbone beside a classifier; the config key that asks for test images.
BACKBONE, ON_TEST_IMAGES = "backbone", "on-test-images"
_RECORD, _KEY = "config", "digest"
# Of a feature map: its matrices are made of a few numbers.
_MOST = {"d": MOST_FEATURES, "rf_dim": MOST_RANDOM_FEATURES}


def pack_classifier(classifier: Classifier) -> ArrayRecord:
    """Return the record of a classifier: weights, present and perhaps bias."""
    arrays = {"weights": classifier.W, "present": classifier.present}
    if classifier.bias is not None:
        arrays["bias"] = classifier.bias
    return ArrayRecord({name: Array(x.cpu().numpy()) for name, x in arrays.items()})


def unpack_classifier(arrays: Sequence[AnyArray]) -> Classifier:
    """Return the classifier in its arrays."""
    if len(arrays) not in (2, 3):
        raise RecordError(f"A classifier must be 2 or 3 arrays, got {len(arrays)}.")
    W, present, *rest = (np.asarray(array) for array in arrays)
    if W.ndim != 2 or W.dtype.kind != "f" or not np.isfinite(W).all():
        raise RecordError(f"weights must be finite numbers (d, C), got {W.dtype}.")
    if present.shape != W.shape[1:] or present.dtype != np.bool_:
        raise RecordError(
            f"present must be {W.shape[1]} booleans, got {present.dtype}."
        )
    for bias in rest:
        if bias.shape != present.shape or bias.dtype != W.dtype:
            raise RecordError(f"bias must be {W.shape[1]} numbers, got {bias.dtype}.")
        if not np.isfinite(bias).all():
            raise RecordError("bias must be finite, got NaN or infinity.")
    # Copied: what arrives may not be written to.
    return Classifier(*(torch.from_numpy(x.copy()) for x in (W, present, *rest)))


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records as they travel, framing aside."""
    return sum(_record_bytes(record) for record in content.values())


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    try:
        return record.count_bytes()
    except (ValueError, IndexError):  # Flower does not count empty strings and lists
        return sum(len(key) + _value_bytes(value) for key, value in record.items())


def _value_bytes(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def add_digest(content: RecordDict, digest: str, parity: Parity | None) -> None:
    """Put the digest of what went into a reply's statistics beside them.

    And the client's features of the built-in picture, where it has any.
    """
    content[_RECORD] = ConfigRecord({_KEY: digest})
    add_parity(content.config_records[_RECORD], parity)


def read_digest(content: RecordDict) -> str:
    """Return the digest in a reply's records, or raise RecordError."""
    digest = content.config_records.get(_RECORD, ConfigRecord()).get(_KEY)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise RecordError(f"digest must be 64 hexadecimal digits, got {shown(digest)}.")
    return digest


class ImageCounts(NamedTuple):
    """What a client says of its images besides: numbers, never names."""

    unreadable: int = 0  # images that were left out
    held_out_classes: int = 0  # classes all of whose images are test images


def add_image_counts(content: RecordDict, counts: ImageCounts) -> None:
    """Put counts of images beside a digest."""
    values = {_kebab(name): value for name, value in counts._asdict().items()}
    content[_RECORD] = ConfigRecord({**dict(content.config_records[_RECORD]), **values})


def read_image_counts(content: RecordDict) -> ImageCounts:
    """Return the counts in a reply's records, 0 where there are none."""
    record = content.config_records.get(_RECORD, ConfigRecord())
    keys = (_kebab(name) for name in ImageCounts._fields)
    return ImageCounts(*(read_whole(record, key, default=0) for key in keys))


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def pack_feature_map(feature_map: FeatureMap) -> ConfigRecord:
    """Return the config record of a feature map."""
    return ConfigRecord(
        {_kebab(name): value for name, value in asdict(feature_map).items()}
    )


def read_feature_map(config: ConfigRecord) -> FeatureMap:
    """Return the feature map that a config record describes."""
    try:
        values = {
            field.name: config[_kebab(field.name)] for field in fields(FeatureMap)
        }
    except KeyError as error:
        raise RecordError(f"A feature map must have the key {error}.") from None
    kinds = _kinds()
    for name, value in values.items():
        most = _MOST.get(name, math.inf)
        if type(value) is not kinds[name] or not 0 <= value <= most:  # type: ignore[operator]
            raise RecordError(
                f"{name} of a feature map must be {kinds[name].__name__} from 0 to "
                f"{most:g}, got {shown(value)}."
            )
    return FeatureMap(**values)  # type: ignore[arg-type]


@cache
def _kinds() -> dict[str, type]:
    """Return the type of each number, looked up once and not for every message."""
    return get_type_hints(FeatureMap)
