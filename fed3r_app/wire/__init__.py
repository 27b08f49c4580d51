"""Statistics and classifiers as Flower records, and back.

The only package that knows the names, the order and the layout of what travels. A
statistics record holds a ``header`` of eight int64 (version, form, dtype, d, C, n, r,
C_k) and then, by form:

    ==========  ==================================================================
    factor      classes, counts (C_k); pivots (r); R, the upper trapezium of the
                factor with its pivot columns first, row by row; S (r, C_k)
    packed      classes, counts (C_k); A, its upper triangle, row by row; b (d, C_k)
    dense       counts (C); A (d, d); b (d, C)
    ==========  ==================================================================

Nothing that arrives is trusted: ``unpack_contribution`` checks every array against
the header before it believes any. ``versions`` says which code is at either end.
"""

from functools import partial
from typing import TYPE_CHECKING

from fed3r_app.core.lazy import find_name
from fed3r_app.core.names import DTYPES, FORMS

if TYPE_CHECKING:
    from fed3r_app.wire.hello import (
        Hello,
        pack_hello,
        read_hello,
        read_labels,
        read_reading,
        with_labels,
        with_reading,
    )
    from fed3r_app.wire.layout import keep_names, name_arrays
    from fed3r_app.wire.messages import (
        BACKBONE,
        ON_TEST_IMAGES,
        ImageCounts,
        add_digest,
        add_image_counts,
        count_bytes,
        pack_classifier,
        pack_feature_map,
        read_digest,
        read_feature_map,
        read_image_counts,
        unpack_classifier,
    )
    from fed3r_app.wire.packing import StatisticsBuilder, pack_statistics
    from fed3r_app.wire.parity import Parity, ParityCheck, add_parity, read_parity
    from fed3r_app.wire.training import (
        CONTROL,
        FIXED,
        RECEIVED_CORRECT,
        RECEIVED_LOSS,
        RUNNING,
        Fit,
        TrainRequest,
        pack_arrays,
        pack_fit,
        pack_temperatures,
        read_evaluation,
        read_fit,
        read_leave_one_out,
        read_temperatures,
        unpack_arrays,
    )
    from fed3r_app.wire.unpacking import unpack_contribution, unpack_statistics
    from fed3r_app.wire.validation import read_array

__all__ = [
    "BACKBONE",
    "CONTROL",
    "DTYPES",
    "FIXED",
    "FORMS",
    "ON_TEST_IMAGES",
    "RECEIVED_CORRECT",
    "RECEIVED_LOSS",
    "RUNNING",
    "Fit",
    "Hello",
    "ImageCounts",
    "Parity",
    "ParityCheck",
    "RecordError",
    "StatisticsBuilder",
    "TrainRequest",
    "add_digest",
    "add_image_counts",
    "add_parity",
    "count_bytes",
    "keep_names",
    "name_arrays",
    "pack_arrays",
    "pack_classifier",
    "pack_feature_map",
    "pack_fit",
    "pack_hello",
    "pack_statistics",
    "pack_temperatures",
    "read_array",
    "read_digest",
    "read_evaluation",
    "read_feature_map",
    "read_fit",
    "read_hello",
    "read_image_counts",
    "read_labels",
    "read_leave_one_out",
    "read_parity",
    "read_reading",
    "read_temperatures",
    "unpack_arrays",
    "unpack_classifier",
    "unpack_contribution",
    "unpack_statistics",
    "with_labels",
    "with_reading",
]


class RecordError(ValueError):
    """A record that can't be what it says it is."""


# ``hello`` comes first: it needs no torch.
_MODULES = (
    *("hello", "parity", "validation", "layout", "messages"),
    *("packing", "unpacking", "training"),
)
__getattr__ = partial(find_name, __name__, _MODULES)
