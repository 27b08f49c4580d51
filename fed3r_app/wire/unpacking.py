"""From a statistics record back to statistics; nothing that arrives is trusted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fed3r_app.core import Contribution, Limits, RidgeStatistics, StatisticsFactor
from fed3r_app.core.consistency import check_contribution
from fed3r_app.core.factors import take_columns
from fed3r_app.core.statistics import check_same_space, mirror_upper, unpack_upper
from fed3r_app.wire import RecordError
from fed3r_app.wire.layout import Header, pivots_first
from fed3r_app.wire.validation import AnyArray, read_array

# No honest sum comes near; with it, no product or sum of what arrives overflows.
_LARGEST = 1e100


def unpack_statistics(record: ArrayRecord, space: tuple[int, int]) -> RidgeStatistics:
    """Return the statistics in a record, in full; see ``unpack_contribution``.

    ``space`` must be given: A is d x d whatever little has arrived.
    """
    return unpack_contribution(record, space).statistics()


def unpack_contribution(
    record: ArrayRecord,
    space: tuple[int, int] | None = None,
    limits: Limits | None = None,
) -> Contribution:
    """Return what a record holds: a factor as a factor, A and b as statistics.

    Parameters
    ----------
    record : ArrayRecord
        A statistics record.
    space : (int, int) or None
        The d and C it must be of, checked before anything of that size is made; None
        for a record of one's own.
    limits : Limits or None
        What is known of the samples. The statistics must be those of such samples; None
        leaves that unchecked.

    Raises
    ------
    RecordError
        With one sentence, if anything about the record is wrong.
    InconsistentStatistics
        If the record is whole, but not the statistics of samples within the limits.
    """
    if "header" not in record:
        raise RecordError(f"Array 'header' is missing, got {sorted(record)}.")
    header = Header.parse(read_array(record, "header"))
    if space is not None:
        check_same_space(space, (header.d, header.num_classes))
    contribution = _UNPACK[header.form](header, _read_arrays(record, header))
    if limits is not None:
        check_contribution(contribution, limits, getattr(torch, header.dtype))
    return contribution


def _read_arrays(record: ArrayRecord, header: Header) -> dict[str, AnyArray]:
    layout = header.layout()
    if set(record) != {"header", *layout}:
        raise RecordError(
            f"A {header.form} record must hold {['header', *layout]}, got "
            f"{sorted(record)}."
        )
    arrays = {}
    for name, (dtype, shape) in layout.items():
        array = read_array(record, name)
        if array.dtype != dtype or array.shape != shape:
            raise RecordError(
                f"{name} must be {dtype} of shape {shape}, got {array.dtype} of shape "
                f"{array.shape}."
            )
        if dtype != "int64" and not np.isfinite(array).all():
            raise RecordError(f"{name} must be finite, got NaN or infinity.")
        if dtype == "float64" and (np.abs(array) > _LARGEST).any():
            raise RecordError(f"{name} must lie within {_LARGEST:g}, got more.")
        arrays[name] = array
    return arrays


def _unpack_factor(header: Header, arrays: dict[str, AnyArray]) -> StatisticsFactor:
    classes, counts = _read_classes(header, arrays)
    pivots = torch.from_numpy(arrays["pivots"])
    if len(set(pivots.tolist())) != header.rank or _outside(pivots, header.d):
        raise RecordError(f"pivots must be distinct columns below d = {header.d}.")
    ordered = unpack_upper(arrays["R"], header.rank, header.d)
    if bool((ordered.diagonal() < 0).any()):  # float16 may round a small one to 0
        raise RecordError("R must have a positive diagonal.")
    R = take_columns(ordered, pivots_first(pivots, header.d).argsort())
    return StatisticsFactor(
        R, _float64(arrays["S"]), pivots, classes, counts, header.num_classes
    )


def _unpack_packed(header: Header, arrays: dict[str, AnyArray]) -> RidgeStatistics:
    classes, counts = _read_classes(header, arrays)
    A = mirror_upper(unpack_upper(arrays["A"], header.d, header.d))
    b = A.new_zeros(header.d, header.num_classes)
    b[:, classes] = _float64(arrays["b"])
    all_counts = counts.new_zeros(header.num_classes)
    all_counts[classes] = counts
    return RidgeStatistics(A, b, all_counts)


def _unpack_dense(header: Header, arrays: dict[str, AnyArray]) -> RidgeStatistics:
    counts = torch.from_numpy(arrays["counts"])
    if bool((counts < 0).any()) or _exact_sum(counts) != header.n:
        raise RecordError(f"counts must be >= 0 with sum n = {header.n}.")
    if int((counts > 0).sum()) != header.num_present:
        raise RecordError(f"counts must name C_k = {header.num_present} classes.")
    A, b = _float64(arrays["A"]), _float64(arrays["b"])
    if not torch.equal(A, A.T):
        raise RecordError("A must be symmetric.")
    if bool(b[:, counts == 0].any()):
        raise RecordError("b must be zero for a class without samples.")
    return RidgeStatistics(A, b, counts)


def _read_classes(header: Header, arrays: dict[str, AnyArray]) -> tuple[Tensor, Tensor]:
    classes = torch.from_numpy(arrays["classes"])
    counts = torch.from_numpy(arrays["counts"])
    if _outside(classes, header.num_classes) or bool((classes.diff() <= 0).any()):
        raise RecordError(
            f"classes must ascend within [0, {header.num_classes}), got "
            f"{classes.tolist()[:10]}."
        )
    if bool((counts < 1).any()) or _exact_sum(counts) != header.n:
        raise RecordError(f"counts must be >= 1 with sum n = {header.n}.")
    return classes, counts


def _exact_sum(counts: Tensor) -> int:
    """Return the sum in Python's integers, which hostile counts can't overflow."""
    return sum(counts.tolist())


def _outside(indices: Tensor, limit: int) -> bool:
    return bool(((indices < 0) | (indices >= limit)).any())


def _float64(array: AnyArray) -> Tensor:
    return torch.from_numpy(array.astype(np.float64))


_UNPACK: dict[str, Callable[[Header, dict[str, AnyArray]], Contribution]] = {
    "factor": _unpack_factor,
    "packed": _unpack_packed,
    "dense": _unpack_dense,
}
