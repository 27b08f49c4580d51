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
the header before it believes any.
"""

from fed3r_app.choices import DTYPES, FORMS
from fed3r_app.greeting import Hello, pack_hello
from fed3r_app.wire.classifier import (
    BACKBONE,
    ON_TEST_IMAGES,
    count_bytes,
    pack_classifier,
    unpack_classifier,
)
from fed3r_app.wire.contribution import add_digest, read_digest
from fed3r_app.wire.feature_maps import pack_feature_map, read_feature_map
from fed3r_app.wire.hello import read_hello
from fed3r_app.wire.labels import read_labels, with_labels
from fed3r_app.wire.layout import RecordError, name_arrays, read_array
from fed3r_app.wire.packing import StatisticsBuilder, pack_statistics
from fed3r_app.wire.training import (
    CONTROL,
    FIXED,
    RUNNING,
    TrainingQuestion,
    keep_names,
    pack_arrays,
    pack_losses,
    pack_temperatures,
    read_losses,
    read_temperatures,
    unpack_arrays,
)
from fed3r_app.wire.unpacking import unpack_contribution, unpack_statistics

__all__ = [
    "BACKBONE",
    "CONTROL",
    "DTYPES",
    "FIXED",
    "FORMS",
    "ON_TEST_IMAGES",
    "RUNNING",
    "Hello",
    "RecordError",
    "StatisticsBuilder",
    "TrainingQuestion",
    "add_digest",
    "count_bytes",
    "keep_names",
    "name_arrays",
    "pack_arrays",
    "pack_classifier",
    "pack_feature_map",
    "pack_hello",
    "pack_losses",
    "pack_statistics",
    "pack_temperatures",
    "read_array",
    "read_digest",
    "read_feature_map",
    "read_hello",
    "read_labels",
    "read_losses",
    "read_temperatures",
    "unpack_arrays",
    "unpack_classifier",
    "unpack_contribution",
    "unpack_statistics",
    "with_labels",
]
