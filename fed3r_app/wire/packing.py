"""From features and labels to the arrays of a statistics record."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import FactorBuilder, RidgeStatistics, StatisticsFactor
from fed3r_app.core.factors import take_columns
from fed3r_app.core.names import DTYPES, FORMS
from fed3r_app.core.statistics import pack_upper
from fed3r_app.wire.layout import (
    AnyArray,
    Header,
    name_arrays,
    pivots_first,
)


class StatisticsBuilder:
    """Builds the record of a client's statistics, chunk by chunk, in bounded memory.

    Parameters
    ----------
    num_classes : int
        C; labels lie below it.
    form : str
        ``factor``, ``packed`` or ``dense``.
    """

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
            return _factor_arrays(self._factor.build(), dtype)
        if self._sum is None:
            raise ValueError("A record needs to know d: add at least an empty chunk.")
        arrays = _packed_arrays if self._form == "packed" else _dense_arrays
        return arrays(self._sum, dtype)

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


def _factor_arrays(factor: StatisticsFactor, dtype: str) -> list[AnyArray]:
    header = Header(
        form="factor",
        dtype=dtype,
        d=factor.d,
        num_classes=factor.num_classes,
        n=factor.n,
        rank=len(factor.R),
        num_present=len(factor.classes),
    )
    order = pivots_first(factor.pivots, factor.d)
    return [
        header.array(),
        factor.classes.numpy(),
        factor.counts.numpy(),
        factor.pivots.numpy(),
        _cast(pack_upper(take_columns(factor.R, order)), dtype, "R"),
        _cast(factor.S, dtype, "S"),
    ]


def _packed_arrays(stats: RidgeStatistics, dtype: str) -> list[AnyArray]:
    classes = stats.counts.nonzero().flatten()
    return [
        _sum_header("packed", stats, dtype).array(),
        classes.numpy(),
        stats.counts[classes].numpy(),
        _cast(pack_upper(stats.A), dtype, "A"),
        _cast(stats.b[:, classes], dtype, "b"),
    ]


def _dense_arrays(stats: RidgeStatistics, dtype: str) -> list[AnyArray]:
    return [
        _sum_header("dense", stats, dtype).array(),
        stats.counts.numpy(),
        _cast(stats.A, dtype, "A"),
        _cast(stats.b, dtype, "b"),
    ]


def _sum_header(form: str, stats: RidgeStatistics, dtype: str) -> Header:
    present = int((stats.counts > 0).sum())
    return Header(form, dtype, stats.d, stats.num_classes, stats.n, 0, present)


def _cast(values: Tensor, dtype: str, name: str) -> AnyArray:
    with np.errstate(over="ignore"):
        array = values.numpy().astype(dtype)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} reaches {float(values.abs().max()):.3g}, which passes the largest "
            f"{dtype}. Use a wider upload-dtype."
        )
    return np.ascontiguousarray(array)
