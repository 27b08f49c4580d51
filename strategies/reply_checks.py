"""Whether a reply to a training request can be averaged with the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fed3r_app.core import Metrics
from fed3r_app.wire import (
    FIXED,
    RECEIVED_CORRECT,
    RECEIVED_LOSS,
    RecordError,
    read_array,
)
from fed3r_app.wire.validation import read_number as check_number
from fed3r_app.wire.validation import read_whole, shown

# record -> array -> dtype and shape
Layout = dict[str, dict[str, tuple[str, tuple[int, ...]]]]
Named = dict[str, dict[str, NDArray[Any]]]
# No weight of a network comes near; with it, no mean of float32 overflows.
_LARGEST_WEIGHT = 1e15
METRICS, NUM_EXAMPLES, LOSS = "metrics", "num-examples", "train-loss"


def expected_layout(request: Message) -> Layout:
    """Return the layout of what a request holds and its reply must hold too."""
    records = request.content.array_records.items()
    return _layout(_read({key: record for key, record in records if key != FIXED}))


def find_problem(reply: Message, expected: Layout) -> str | None:
    """Return why a reply can't be averaged in, else None."""
    arrays, metrics = reply.content.array_records, reply.content.metric_records
    if "arrays" not in arrays or set(metrics) != {METRICS}:
        return "its reply has no arrays or no metrics"
    return _metrics_problem(metrics[METRICS]) or _arrays_problem(arrays, expected)


def _metrics_problem(metrics: MetricRecord) -> str | None:
    try:
        count = read_whole(metrics, NUM_EXAMPLES)
        check_number(metrics, LOSS, -math.inf)
        read_whole(metrics, RECEIVED_CORRECT, count, default=0)
    except RecordError as error:
        return f"its {error}"
    return None if count else "it has no images"


def has_diverged(reply: Message) -> bool:
    """Return whether a client that reports its fit says that a loss is not finite."""
    metrics = reply.content.metric_records.get(METRICS, MetricRecord())
    losses = (metrics.get(key) for key in (LOSS, RECEIVED_LOSS))
    return RECEIVED_LOSS in metrics and not all(
        type(loss) is float and math.isfinite(loss) for loss in losses
    )


def received_fit(reply: Message) -> Metrics | None:
    """Return what the received model gets right on the client's training images."""
    metrics = reply.content.metric_records[METRICS]
    if RECEIVED_CORRECT not in metrics:
        return None
    return Metrics(int(read_number(metrics, RECEIVED_CORRECT)), num_examples(reply))


def _arrays_problem(records: Mapping[str, ArrayRecord], expected: Layout) -> str | None:
    try:
        arrays = _read(records)
    except RecordError as error:
        return str(error)
    if _layout(arrays) != expected:
        return "its arrays are not those it was sent"
    for named in arrays.values():
        for name, array in named.items():
            if array.dtype.kind not in "fiub":
                return f"its {shown(name)} is of {array.dtype}"
            # Also where NaN or infinity is in it.
            if not (np.abs(array) <= _LARGEST_WEIGHT).all():
                return f"its {name} is not finite, or beyond {_LARGEST_WEIGHT:g}"
    return None


def _read(records: Mapping[str, ArrayRecord]) -> Named:
    return {
        key: {name: read_array(record, name) for name in record}
        for key, record in records.items()
    }


def _layout(arrays: Named) -> Layout:
    # Of the data itself: what a reply says about it may be wrong.
    return {
        key: {name: (array.dtype.str, array.shape) for name, array in named.items()}
        for key, named in arrays.items()
    }


def keep_averaged_metrics(reply: Message) -> None:
    """Keep the metrics that are averaged: Flower wants the same from all."""
    metrics = reply.content.metric_records[METRICS]
    kept = {key: metrics[key] for key in (NUM_EXAMPLES, LOSS)}
    reply.content[METRICS] = MetricRecord(kept)


def num_examples(reply: Message) -> int:
    """Return the number of samples that a checked reply was trained on."""
    metrics = reply.content.metric_records[METRICS]
    return int(read_number(metrics, NUM_EXAMPLES))


def read_number(metrics: MetricRecord, key: str) -> float:
    """Return a metric as a float."""
    return float(metrics[key])  # type: ignore[arg-type]
