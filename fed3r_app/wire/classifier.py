"""Classifiers as records, and the size of what travels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fed3r_app.wire.layout import AnyArray, RecordError

# A fine-tuned backbone beside a classifier; the config key that asks for test images.
BACKBONE, ON_TEST_IMAGES = "backbone", "on-test-images"


def pack_classifier(W: Tensor, present: Tensor) -> ArrayRecord:
    """Return the record of a classifier W (d, C) and its classes present (C,)."""
    return ArrayRecord(
        {
            "weights": Array(W.cpu().numpy()),
            "present": Array(present.cpu().numpy()),
        }
    )


def unpack_classifier(arrays: Sequence[AnyArray]) -> tuple[Tensor, Tensor]:
    """Return W (d, C) and present (C,) of a classifier's arrays."""
    if len(arrays) != 2:
        raise RecordError(f"A classifier must be 2 arrays, got {len(arrays)}.")
    W, present = np.asarray(arrays[0]), np.asarray(arrays[1])
    if W.ndim != 2 or W.dtype.kind != "f" or not np.isfinite(W).all():
        raise RecordError(f"weights must be finite numbers (d, C), got {W.dtype}.")
    if present.shape != W.shape[1:] or present.dtype != np.bool_:
        raise RecordError(
            f"present must be {W.shape[1]} booleans, got {present.dtype}."
        )
    # Copied: what arrives may not be written to.
    return torch.from_numpy(W.copy()), torch.from_numpy(present.copy())


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records as they travel, framing aside."""
    return sum(_record_bytes(record) for record in content.values())


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    try:
        return record.count_bytes()
    except (ValueError, IndexError):  # Flower does not count empty strings and lists
        return sum(len(key) + len(str(value)) for key, value in record.items())
