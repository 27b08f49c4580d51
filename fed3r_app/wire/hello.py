"""The first exchange, at the server: who a node is. See `fed3r_app.greeting`."""

from __future__ import annotations

import math

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict

from fed3r_app.core import FeatureMoments
from fed3r_app.greeting import Hello
from fed3r_app.wire.labels import read_labels
from fed3r_app.wire.layout import RecordError, read_array


def read_hello(content: RecordDict) -> Hello:
    """Return the hello in a reply's records, or raise RecordError."""
    config = content.config_records.get("config", ConfigRecord())
    client_id, num_partitions = config.get("client-id"), config.get("num-partitions")
    if not isinstance(client_id, str) or not client_id:
        raise RecordError(f"client-id must be a name, got {client_id!r}.")
    if not isinstance(num_partitions, int) or num_partitions < 0:
        raise RecordError(f"num-partitions must be >= 0, got {num_partitions!r}.")
    num_test_images = config.get("num-test-images", 0)
    if not isinstance(num_test_images, int) or num_test_images < 0:
        raise RecordError(f"num-test-images must be >= 0, got {num_test_images!r}.")
    moments = _read_moments(content, config)
    labels = read_labels(config) or ()
    return Hello(client_id, num_partitions, moments, labels, num_test_images)


def _read_moments(content: RecordDict, config: ConfigRecord) -> FeatureMoments | None:
    if "arrays" not in content.array_records:
        return None
    total = read_array(content.array_records["arrays"], "sum")
    n, squared_norms = config.get("num-examples"), config.get("squared-norms")
    if total.ndim != 1 or total.dtype != np.float64 or not np.isfinite(total).all():
        raise RecordError(f"sum must be finite float64 (d,), got {total.dtype}.")
    if not isinstance(n, int) or n < 0:
        raise RecordError(f"num-examples must be >= 0, got {n!r}.")
    if not isinstance(squared_norms, float) or not 0 <= squared_norms < math.inf:
        raise RecordError(f"squared-norms must be >= 0, got {squared_norms!r}.")
    return FeatureMoments(n, torch.from_numpy(total), squared_norms)
