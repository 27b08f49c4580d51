"""Records with anything changed in them, and what that may cost."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fed3r_app.wire import RecordError, read_array

MOST_MEGABYTES = 100
WHOLE = [0, 1, -1, 7, 2**31, 2**53, -(2**63), 2**63 - 1, 10**15, 1 << 20_000]
FLOATS = [-0.5, 0.0, 1e-320, 0.3, 1e30, -1e99, 1e308, math.nan, math.inf, -math.inf]
NUMBERS: list[Any] = [*WHOLE, *FLOATS]
TEXTS: list[Any] = [
    *("", "0", "7", "٣", "9" * 5000, "x" * 10**5, "a\x1b[2Jb\n", "\u202egpj", "/../x"),
    *(b"", b"\x00" * 32, b"x" * 5000, True, False),
]
LISTS: list[Any] = [
    *([0], [1, 1], [-1, 2**63 - 1], [0.5], [math.nan, 1e308], ["a"], ["a", "a"]),
    *(["\x1b"], [b""], [b"x" * 33], list(range(3000)), [str(i) for i in range(40_000)]),
]
DTYPES = ["int64", "int8", "uint64", "float16", "float32", "float64", "S3", "bool"]


def mutate(content: RecordDict, rng: np.random.Generator) -> RecordDict:
    """Return a copy of the records of a message with one to three changes."""
    records: dict[str, Any] = {key: _copy(record) for key, record in content.items()}
    changed: Any = RecordDict(records)
    for _ in range(rng.integers(1, 4)):
        if not len(changed):
            break
        name = str(rng.choice(list(changed)))
        way = rng.integers(12)
        if way == 0:
            del changed[name]
        elif way == 1:
            other = str(rng.choice(["arrays", "config", "metrics", "x"]))
            changed[other] = _copy(changed[name])
        elif way == 2:
            kinds = [ArrayRecord(), ConfigRecord(), MetricRecord({"num-examples": 3})]
            changed[name] = kinds[rng.integers(3)]
        else:
            record: Any = changed[name]
            if isinstance(record, ArrayRecord):
                _change_array(record, rng)
            else:
                _change_value(record, rng)
    return RecordDict(dict(changed.items()))


def _copy(record: Any) -> Any:
    return type(record)(dict(record.items()))


def _change_value(record: Any, rng: np.random.Generator) -> None:
    """Change a key or a value, where Flower lets such a record hold that."""
    keys = [*record, "num-examples", "labels", "digest"]
    key = str(rng.choice(keys if rng.random() < 0.1 or not record else list(record)))
    way, value = rng.integers(8), record.get(key)
    try:
        if way == 0 and key in record:
            del record[key]
        elif way == 1 and isinstance(value, int | float):
            factors = [-1, 0, 2, 1e3, 1e9, 1e-9]
            record[key] = type(value)(value * factors[rng.integers(len(factors))])
        elif way == 2 and isinstance(value, list):
            record[key] = [value[:-1], value * 2, value[::-1]][rng.integers(3)]
        elif way == 3 and isinstance(value, bytes):
            record[key] = rng.permutation(list(value)).astype(np.uint8).tobytes()
        else:
            choices = [NUMBERS, TEXTS, LISTS][rng.integers(3)]
            record[key] = choices[rng.integers(len(choices))]
    except (TypeError, ValueError, OverflowError):
        record.pop(key, None)


def _change_array(record: ArrayRecord, rng: np.random.Generator) -> None:
    """Change the name, the type, the shape, the values or the bytes of an array."""
    if not len(record):
        record["masked"] = Array(np.zeros(3))
        return
    name = str(rng.choice(list(record)))
    array = _numpy(record, name)
    match rng.integers(9):
        case 0:
            del record[name]
        case 1:
            record[str(rng.choice([*record, "other"]))] = record[name]
        case 2 if array is not None:
            with suppress(OverflowError, ValueError):  # text that is no number
                record[name] = Array(array.astype(str(rng.choice(DTYPES))))
        case 3 if array is not None:
            shapes = [array[None], array.reshape(-1)[:-1], array.T, np.zeros((0, 7))]
            record[name] = Array(np.ascontiguousarray(shapes[rng.integers(4)]))
        case 4:
            sizes = [(2**40,), (2**28,), (2**62, 2**62), (-1,), (10**9, 0)]
            record[name] = claim(sizes[rng.integers(5)])
        case 5:
            data = bytearray(record[name].data)
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            if rng.random() < 0.2:
                data = data[: rng.integers(len(data))]
            record[name] = Array("float64", (3,), "numpy.ndarray", bytes(data))
        case 6:
            record[name] = Array("float64", (3,), "pickle", b"\x80\x04K\x01.")
        case _ if array is not None and array.size and array.dtype.kind in "iuf":
            value = FLOATS[rng.integers(len(FLOATS))]
            with np.errstate(all="ignore"):
                value = np.float64(value).astype(array.dtype)
            array.reshape(-1)[rng.integers(array.size)] = value
            record[name] = Array(array)


def _numpy(record: ArrayRecord, name: str) -> Any:
    try:
        return read_array(record, name)
    except RecordError:  # it has been changed before
        return None


def claim(shape: tuple[int, ...]) -> Array:
    """Return an array whose bytes claim a shape, and are not there."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return Array("float64", shape, "numpy.ndarray", file.getvalue() + bytes(64))


@contextmanager
def little_memory() -> Iterator[None]:
    """Check that not much more memory is asked for, be it used or not."""
    before = _peak()
    yield
    assert _peak() - before < MOST_MEGABYTES, "too much memory was asked for"


def _peak() -> float:
    """Return the most megabytes of addresses that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("VmPeak is not there.")
