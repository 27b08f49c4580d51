"""From features and labels to the arrays of a statistics record."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import Contribution, FactorBuilder, RidgeStatistics
from fed3r_app.core.factors import take_columns
from fed3r_app.core.names import DTYPES, FORMS
from fed3r_app.core.statistics import pack_upper
from fed3r_app.wire.layout import Header, name_arrays, pivots_first
from fed3r_app.wire.validation import AnyArray


class StatisticsBuilder:
    """Builds the record of a client's statistics, chunk by chunk, in bounded memory."""

    def __init__(self, num_classes: int, form: str = "factor") -> None:
        if form not in FORMS:
            raise ValueError(f"upload must be one of {FORMS}, got {form!r}.")
        self._form = form
        self._num_classes = num_classes
        self._factor = FactorBuilder(num_classes)
        self._sum: RidgeStatistics | None = None

    def add(self, Z: Tensor, y: Tensor) -> None:
        """Add samples with features Z (m, d) and labels y (m,)."""
        if self._form == "factor":
            self._factor.add(Z, y)
            return
        chunk = RidgeStatistics.of(Z, y, self._num_classes)
        self._sum = chunk if self._sum is None else self._sum + chunk

    def arrays(self, dtype: str = "float32") -> list[AnyArray]:
        """Return the arrays of the record, in order."""
        if dtype not in DTYPES:
            raise ValueError(f"upload-dtype must be one of {DTYPES}, got {dtype!r}.")
        if dtype == "float16" and self._form != "factor":
            raise ValueError(
                f"upload-dtype = 'float16' goes with upload = 'factor' only, got "
                f"{self._form!r}: the entries of A pass the largest float16."
            )
        if self._form == "factor":
            factor = self._factor.build()
            integers = [factor.classes, factor.counts, factor.pivots]
            order = pivots_first(factor.pivots, factor.d)
            floats = {"R": pack_upper(take_columns(factor.R, order)), "S": factor.S}
            return _join("factor", dtype, factor, integers, floats)
        stats = self._sum
        if stats is None:
            raise ValueError("A record needs to know d: add at least an empty chunk.")
        if self._form == "packed":
            integers = [stats.classes, stats.class_counts]
            floats = {"A": pack_upper(stats.A), "b": stats.b[:, stats.classes]}
        else:
            integers, floats = [stats.counts], {"A": stats.A, "b": stats.b}
        return _join(self._form, dtype, stats, integers, floats)

    def pack(self, dtype: str = "float32") -> ArrayRecord:
        """Return the record."""
        return name_arrays(self.arrays(dtype))


def pack_statistics(
    Z: Tensor, y: Tensor, num_classes: int, form: str = "factor", dtype: str = "float32"
) -> ArrayRecord:
    """Return the record of the statistics of Z (n, d) and y (n,)."""
    builder = StatisticsBuilder(num_classes, form)
    builder.add(Z, y)
    return builder.pack(dtype)


def _join(
    form: str,
    dtype: str,
    values: Contribution,
    integers: list[Tensor],
    floats: dict[str, Tensor],
) -> list[AnyArray]:
    """Return the header and the arrays after it."""
    rank = values.num_rows if form == "factor" else 0
    sizes = (values.d, values.num_classes, values.n, rank, len(values.classes))
    return [
        Header(form, dtype, *sizes).array(),
        *(array.numpy() for array in integers),
        *(_cast(array, dtype, name) for name, array in floats.items()),
    ]


def _cast(values: Tensor, dtype: str, name: str) -> AnyArray:
    with np.errstate(over="ignore"):
        array = values.numpy().astype(dtype)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} reaches {float(values.abs().max()):.3g}, which passes the largest "
            f"{dtype}. Use a wider upload-dtype."
        )
    return np.ascontiguousarray(array)
