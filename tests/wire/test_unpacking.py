"""Nothing that arrives is trusted: one sentence for each thing that is wrong."""

import io
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fed3r_app.wire import (
    FORMS,
    RecordError,
    pack_statistics,
    unpack_contribution,
    unpack_statistics,
)
from tests.harness.samples import Draw

D, C = 6, 4
HEADER = ["version", "form", "dtype", "d", "C", "n", "r", "C_k"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def make(draw: Draw) -> Any:
    """Return a valid record whose arrays may be replaced, or dropped with None."""

    def make_record(form: str, dtype: str = "float64", **replaced: Any) -> Any:
        Z, y = draw(9, D, C - 1, seed=0)
        record = pack_statistics(Z, y, C, form, dtype)
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, change in replaced.items():
            arrays[name] = change(arrays[name]) if callable(change) else change
        return ArrayRecord(
            {k: Array(np.asarray(v)) for k, v in arrays.items() if v is not None}
        )

    return make_record


def put(position: Any, value: Any) -> Any:
    """Return a change of one entry, in order, of an array."""

    def change(array: Any) -> Any:
        array = array.copy()
        array.reshape(-1)[position] = value
        return array

    return change


def refuses(record: Any, match: str, space: Any = (D, C)) -> None:
    with pytest.raises(RecordError, match=match):
        unpack_contribution(record, space)


def test_the_record_that_is_changed_below_is_valid(make: Any, form: str) -> None:
    assert unpack_statistics(make(form), (D, C)).n == 9


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        *(("version", value, f"of version 1, got {value}") for value in (0, 2)),
        *(("form", value, f"form must be 0 to 2, got {value}") for value in (-1, 3)),
        *(("dtype", value, f"dtype must be 0 to 2, got {value}") for value in (-1, 3)),
        ("d", 0, "d must be 1 to 1000000, got 0"),
        ("d", -6, "d must be 1 to 1000000, got -6"),
        ("C", 0, "C must be 1 to 30000, got 0"),
        ("n", -1, "n must be 0 to .* got -1"),
        ("n", 2**62, "n must be 0 to .* got 4611686018427387904"),
        ("n", 10, "counts must be >= . with sum n = 10"),
        ("r", -1, r"r must be 0 to \d, got -1"),
        ("r", 7, r"r must be 0 to \d, got 7"),
        ("C_k", -1, r"C_k must be 0 to min\(n, C\) = 4, got -1"),
        ("C_k", 5, r"C_k must be 0 to min\(n, C\) = 4, got 5"),
        ("C_k", 2, r"must be int64 of shape \(2,\), got|must name C_k = 2 classes"),
    ],
)
def test_a_header_that_can_not_be_is_refused(
    make: Any, form: str, field: Any, value: Any, match: str
) -> None:
    refuses(make(form, header=put(HEADER.index(field), value)), match)


def test_a_header_of_another_kind_is_refused(make: Any, form: str) -> None:
    for shape, dtype in ((7, "i8"), (9, "i8"), ((2, 4), "i8"), ((), "i8"), (8, ">i8")):
        header = np.zeros(shape, dtype)
        refuses(make(form, header=header), "header must be 8 int64, got")
    refuses(make(form, header=np.zeros(8)), "header must be 8 int64, got float64")


@pytest.mark.parametrize("field", ["d", "C"])
def test_a_huge_space_is_refused_before_anything_is_allocated(
    make: Any, form: str, field: Any
) -> None:
    agree = r"agree on \(d, C\); got \(6, 4\) and"
    for size, sentence in ((2**40, f"{field} must be 1 to"), (20_000, agree)):
        record = make(form, header=put(HEADER.index(field), size))
        for unpack in (unpack_contribution, unpack_statistics):
            with pytest.raises(ValueError, match=sentence):
                unpack(record, (D, C))


def test_a_huge_d_with_small_arrays_is_refused_even_without_a_known_space(
    make: Any, form: str
) -> None:
    refuses(make(form, header=put(3, 2**40)), "d must be 1 to 1000000", space=None)
    refuses(make(form, header=put(3, 10**6)), "must be float64 of shape", space=None)


def test_missing_and_extra_arrays_are_refused(make: Any, form: str) -> None:
    refuses(make(form, header=None), "Array 'header' is missing")
    for name in list(make(form))[1:]:
        refuses(make(form, **{name: None}), f"A {form} record must hold .*{name}")
    refuses(make(form, note=np.zeros(3)), f"A {form} record must hold .* got .*note")


def test_arrays_of_the_wrong_shape_are_refused(make: Any, form: str) -> None:
    for name in list(make(form))[1:]:
        changes = (lambda a: a[:-1], lambda a: a[None], lambda a: a.T.reshape(-1, 1))
        for change in changes:
            refuses(make(form, **{name: change}), f"{name} must be .* of shape .* got")


def test_arrays_of_the_wrong_dtype_are_refused(make: Any, form: str) -> None:
    for name, array in list(make(form).items())[1:]:
        expected = array.numpy().dtype
        for dtype in ("int32", "float32", "complex128", "bool", "<U3", ">f8"):
            record = make(form, **{name: lambda a, dtype=dtype: a.astype(dtype)})
            refuses(record, f"{name} must be {expected} of shape")


def test_values_not_finite_or_with_products_that_overflow_are_refused(
    make: Any, form: str
) -> None:
    for name in list(make(form))[-2:]:
        for dtype, bad in product(("float32", "float64"), (np.nan, np.inf, -np.inf)):
            record = make(form, dtype, **{name: put(0, bad)})
            refuses(record, f"{name} must be finite, got NaN or infinity")
        refuses(make(form, **{name: put(0, -1e200)}), "must lie within 1e[+]100")


# Four times 2^62 is zero in int64: only an exact sum tells 9 from 9 + 2^64.
OVERFLOWING = np.array([2**62, 2**62, 2**62, 2**62 + 9])
CLASSES = [[0, 1, 4], [-1, 0, 1], [0, 2, 1], [0, 1, 1], [0, 1, 2**62]]
COUNTS = [[0, 4, 5], [-1, 5, 5], [1, 1, 1], [2**62, 2**62, 9 - 2**63]]


@pytest.mark.parametrize(
    ("forms", "name", "change", "match"),
    [
        *(
            ("factor packed", "classes", classes, r"must ascend within \[0, 4\), got")
            for classes in CLASSES
        ),
        *(("factor packed", "counts", counts, "must be >= 1") for counts in COUNTS),
        *(("dense", "counts", [*counts, 0], "must ") for counts in COUNTS),
        ("dense", "counts", OVERFLOWING, "must be >= 0 with sum n = 9"),
        ("factor", "pivots", lambda p: p * 0, "must be distinct columns below d = 6"),
        ("factor", "pivots", put(0, 6), "must be distinct columns below d = 6"),
        ("factor", "pivots", put(0, -1), "must be distinct columns below d = 6"),
        ("factor", "R", put(0, -1.0), "must have a positive diagonal"),
        ("dense", "A", put(1, 0.125), "must be symmetric"),
        ("dense", "b", put(C - 1, 0.5), "must be zero for a class without samples"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    make: Any, forms: str, name: str, change: Any, match: str
) -> None:
    for form in forms.split():
        refuses(make(form, **{name: change}), f"^{name} {match}")


@pytest.mark.parametrize("form", ["packed", "dense"])
def test_float16_sums_are_refused(make: Any, form: str) -> None:
    refuses(make(form, header=put(2, 2)), "float16 goes with factors only")


def make_archive() -> Any:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


def make_npy(shape: Any) -> Any:
    """Return the header of an array of the shape, without the data."""
    buffer = io.BytesIO()
    description = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


GARBAGE = {
    "nothing": b"",
    "text": b"not an array",
    "half a magic number": b"\x93NUM",
    "a pickle": b"\x80\x04K\x01.",
    "zip magic": b"PK\x03\x04" + bytes(40),
    "an archive": make_archive(),
    "no data": make_npy((6, 6)),
    "more than there is memory": make_npy((2**50,)),
    "overflowing shape": make_npy((2**62, 2**62)),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_bytes_that_are_no_array_are_refused(make: Any, form: str, data: Any) -> None:
    for name in make(form):
        record = make(form)
        record[name] = Array("float64", (6, 6), "numpy.ndarray", data)
        refuses(record, f"Array '{name}' (can't be read|must be one array)")


def test_arrays_of_another_serialisation_are_refused(make: Any, form: str) -> None:
    record = make(form)
    record["header"] = Array("int64", (8,), "torch", record["header"].data)
    refuses(record, "Array 'header' can't be read: .*not of NumPy's format")


def test_fortran_order_is_read_as_any_other(make: Any) -> None:
    one = unpack_statistics(make("dense"), (D, C))
    other = unpack_statistics(make("dense", A=np.asfortranarray), (D, C))
    assert torch.equal(one.A, other.A)


def mutate(arrays: Any, rng: Any) -> None:
    """Change one thing about the arrays, at random, in place."""
    name = str(rng.choice(list(arrays)))
    array = arrays[name]
    values = [0, 1, -1, 7, 2**31, -(2**63), 2**63 - 1, np.nan, np.inf, 1e308, -1e-320]
    match rng.integers(7):
        case 0:
            del arrays[name]
        case 1:
            other = str(rng.choice([*arrays, "other"]))
            arrays[other] = arrays.pop(name)
        case 2:
            dtypes = ["int64", "int8", "float16", "float32", "float64", "complex64"]
            arrays[name] = array.astype(rng.choice([*dtypes, ">i8", "S3", "bool"]))
        case 3:
            shapes = [array[:-1], array[None], array.reshape(-1), array[:0]]
            arrays[name] = shapes[rng.integers(4)]
        case 4:
            arrays[name] = rng.permutation(array)
        case _ if array.size:
            changed = array.copy()
            value = values[rng.integers(len(values))]
            if changed.dtype.kind == "i":
                value = int(value) if np.isfinite(value) and abs(value) < 2**64 else 3
                value = min(max(value, -(2**63)), 2**63 - 1)
            changed.reshape(-1)[rng.integers(array.size)] = value
            arrays[name] = changed


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_mutated_records_are_refused_or_give_finite_statistics(
    make: Any, form: str
) -> None:
    rng = np.random.default_rng(7)
    valid = {name: array.numpy() for name, array in make(form).items()}
    refused = 0
    for _ in range(500):
        arrays = dict(valid)
        for _ in range(rng.integers(1, 4)):
            if arrays:
                mutate(arrays, rng)
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        try:
            stats = unpack_statistics(record, (D, C))
        except ValueError as error:
            refused += 1
            assert str(error).endswith((".", "?")) or "can't be read" in str(error)
        else:
            assert torch.isfinite(stats.A).all() and torch.isfinite(stats.b).all()
            assert (stats.counts >= 0).all() and stats.n == 9
    assert refused > 250


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_flipped_bytes_are_refused_or_give_finite_statistics(
    make: Any, form: str
) -> None:
    rng = np.random.default_rng(8)
    for _ in range(500):
        record = make(form)
        name = str(rng.choice(list(record)))
        data = bytearray(record[name].data)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        record[name].data = bytes(data)
        with suppress(ValueError):
            stats = unpack_statistics(record, (D, C))
            assert torch.isfinite(stats.A).all() and torch.isfinite(stats.b).all()
