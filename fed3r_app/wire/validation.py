"""The one validator of what arrives: numbers, names and arrays in records; no torch.

All readers of records go through it. A value has its type, its range and its length, or
it is refused in a sentence that shows a short and printable part of it at most.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO

import numpy as np
from flwr.app import ArrayRecord
from flwr.common.constant import SType
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from fed3r_app.wire import RecordError

AnyArray = NDArray[np.generic]
Values = Mapping[str, object]  # a ConfigRecord or a MetricRecord
# Far more images than exist, few enough that sums of counts don't overflow int64.
MAX_SAMPLES = 10**12
MOST_CLIENTS = 10**6
MOST_CLASSES = 30_000  # ImageNet-21k has 21,841
MOST_FEATURES, MOST_RANDOM_FEATURES = 10**6, 50_000
LONGEST_NAME = 200
_LONGEST_HEADER = 10_000  # of an array
_SHOWN = 80
# What moves the cursor, ends a line or turns the direction of what follows. Joiners are
# no such thing: names of some languages need them.
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(value: object) -> str:
    """Return a value for an error: short, and on one line whatever it is."""
    if type(value) is int and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return ascii(value[:_SHOWN])
    if value is None or isinstance(value, int | float):
        return repr(value)
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"


def read_whole(
    record: Values, key: str, most: int = MAX_SAMPLES, default: int | None = None
) -> int:
    """Return a whole number from 0 to the most that it can be."""
    value = record.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise RecordError(
            f"{key} must be a whole number from 0 to {most}, got {shown(value)}."
        )
    return value


def read_number(record: Values, key: str, least: float = 0.0) -> float:
    """Return a finite number that is not below the least."""
    value = record.get(key)
    # Of more bits than a float has exponents, an int has no float.
    fits = type(value) is float or (type(value) is int and value.bit_length() < 1024)
    if not fits or not least <= float(value) < math.inf:  # type: ignore[arg-type]
        raise RecordError(
            f"{key} must be a finite number >= {least:g}, got {shown(value)}."
        )
    return float(value)  # type: ignore[arg-type]


def check_name(key: str, value: object) -> str:
    """Return a name: not empty, not long, without control characters."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise RecordError(
            f"{key} must be a name of 1 to {LONGEST_NAME} characters, got "
            f"{shown(value)}."
        )
    if not value.isprintable() and any(map(_is_control, value)):
        raise RecordError(
            f"{key} must be without control characters, got {shown(value)}."
        )
    return value


def check_names(key: str, values: object, most: int = MOST_CLASSES) -> tuple[str, ...]:
    """Return names that differ, not too many of them."""
    if not isinstance(values, list) or len(values) > most:
        raise RecordError(f"{key} must be {most} names at most, got {shown(values)}.")
    names = tuple(check_name(key, value) for value in values)
    if len(set(names)) < len(names):
        raise RecordError(f"{key} must differ, got one twice.")
    return names


def read_array(record: ArrayRecord, name: str) -> AnyArray:
    """Return an array that arrived, or raise RecordError.

    NumPy's own reader makes room for the shape that the bytes claim before it looks how
    many bytes there are.
    """
    try:
        array = record[name]
        if array.stype != SType.NUMPY:
            raise ValueError("not of NumPy's format")
        return _view(array.data).copy()
    except Exception as error:  # whatever bytes a peer sends, NumPy's word for it
        said = shown(f"{type(error).__name__}: {error}")
        raise RecordError(f"Array {shown(name)} can't be read: {said}.") from None


def _view(data: bytes) -> AnyArray:
    """Return the array in the bytes of NumPy's format, which must be all there."""
    # After magic string and version come the length of the header, and the header.
    length = {1: data[8:10], 2: data[8:12]}[data[6]]
    start = 8 + len(length) + int.from_bytes(length, "little")
    if start > _LONGEST_HEADER:
        raise ValueError(f"a header of {start} bytes")
    shape, is_fortran, dtype = _read_header(data[:start])
    needed, there = math.prod(shape) * dtype.itemsize, len(data) - start
    if needed != there:
        raise ValueError(f"{there} bytes where {needed} are announced")
    values = np.frombuffer(data, dtype, offset=start)
    return values.reshape(shape, order="F" if is_fortran else "C")


@lru_cache(maxsize=256)  # clients send the same few shapes, and NumPy reads slowly
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return shape, order and dtype of an array, given the bytes before its values."""
    file = BytesIO(header)
    read_header = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }
    shape, is_fortran, dtype = read_header[npy_format.read_magic(file)](file)
    if min(shape, default=0) < 0 or dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"shape {shape} of {dtype}")
    return shape, is_fortran, dtype


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROLS or character in _TURNING
