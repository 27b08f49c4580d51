"""Classifiers as records, and the size of what travels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fed3r_app.wire.layout import AnyArray


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
    weights, present = (torch.from_numpy(np.asarray(array)) for array in arrays)
    return weights, present


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records as they travel, framing aside."""
    return sum(record.count_bytes() for record in content.values())
