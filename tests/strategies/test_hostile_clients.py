"""Whatever a client sends, the server goes on, and only possible statistics count.

Thousands of malformed and hostile replies, each through the strategy's own round. What
is counted is held against an oracle that shares no code with the checks.
"""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch import Tensor

from fed3r_app.core import FeatureMap, HeadOptions, Limits, RidgeStatistics, solve_ridge
from fed3r_app.wire import add_digest, pack_statistics
from strategies import Accumulator, ClientRegistry, CohortSampler, Fed3R, HeadSolver
from tests.harness.grid import SpyGrid

D, C, HIGH, MOST = 6, 4, 6.0, 10_000
NODE = 101
LIMITS = Limits.of(FeatureMap(D), (0.0, HIGH), max_samples=MOST)
FORMS_AND_DTYPES = [
    *(("factor", dtype) for dtype in ("float16", "float32", "float64")),
    *((form, f"float{n}") for form in ("packed", "dense") for n in (32, 64)),
]
ROUNDING = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-10}
NUMBERS = [0, 1, -1, 7, 2**31, 2**53, -(2**63), 2**63 - 1, -0.5, 1e-320, 65504.0]
NUMBERS = [*NUMBERS, 1e30, -1e99, 1e308, math.nan, math.inf, -math.inf]

FIXTURES = [HealthCheck.function_scoped_fixture]

pytestmark = pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")


@pytest.fixture(autouse=True)
def _few_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", logger="flwr")  # ten thousand warnings take their time


def samples(rng: Any, n: int) -> tuple[Tensor, Tensor]:
    Z = np.maximum(rng.normal(size=(n, D)), 0).clip(max=HIGH)
    y = rng.integers(C - 1, size=n)  # the last class is absent
    return torch.from_numpy(Z), torch.from_numpy(y)


@functools.cache
def honest_records() -> Any:
    """Return the arrays of honest records, by name, in all forms and of all sizes."""
    made: list[Any] = []
    rng = np.random.default_rng(2)
    for form, dtype in FORMS_AND_DTYPES:
        for n in (1, 1, 2, 3, 5, 9, 9, 30):
            record = pack_statistics(*samples(rng, n), C, form, dtype)
            made.append({name: array.numpy() for name, array in record.items()})
    return made


def valid_arrays(rng: Any) -> Any:
    """Return copies of the arrays of one of them."""
    records = honest_records()
    record = records[rng.integers(len(records))]
    return {name: array.copy() for name, array in record.items()}


def make_server(clients: dict[str, int], per_round: int = 1, **options: Any) -> Fed3R:
    sampler = CohortSampler(tuple(clients), per_round=per_round, seed=0)
    accumulator = Accumulator(RidgeStatistics.zeros(D, C), limits=LIMITS)
    return Fed3R(ClientRegistry(clients), sampler, accumulator, **options)


def receive(content: Any) -> Any:
    """Return what the server made of a reply: counted statistics, or None."""
    request = Message(RecordDict(), dst_node_id=NODE, message_type="train.statistics")
    reply = Message(content, reply_to=request)
    fed3r = make_server({"alice": NODE})
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=SpyGrid()))
    _, metrics = fed3r.aggregate_train(1, [reply])
    stats = fed3r.accumulator.release()
    if not fed3r.sampler.counted:
        assert fed3r.sampler.failures["alice"]
        assert not stats.A.any() and not stats.b.any() and not stats.counts.any()
        return None
    assert metrics["num-examples"] == stats.n
    return stats


def check_possible(stats: Any, tolerance: Any) -> None:
    """Assert by other means that samples in [0, HIGH] can have these statistics."""
    A, b, counts = (array.numpy() for array in (stats.A, stats.b, stats.counts))
    assert np.isfinite(A).all() and np.isfinite(b).all()
    assert (counts >= 0).all() and counts.sum() <= MOST
    assert np.array_equal(A, A.T)
    assert not b[:, counts == 0].any()
    present = counts > 0
    means = b[:, present] / counts[present]
    trace = np.trace(A)
    assert trace <= counts.sum() * D * HIGH**2 * (1 + tolerance + 1e-3)
    floor = tolerance * (HIGH + 1)
    assert (means >= -floor).all() and (means <= HIGH * (1 + 1e-3) + floor).all()
    scatter = A - (means * counts[present]) @ means.T
    least = np.linalg.eigvalsh(scatter).min()
    assert least >= -tolerance * max(trace, 1e-3)


def reply_of(record: Any) -> Any:
    """Return the content of a reply with statistics and a digest."""
    content = RecordDict({"arrays": record})
    add_digest(content, "a" * 64, None)
    return content


def to_record(arrays: Any) -> Any:
    return ArrayRecord(
        {name: Array(np.asarray(array)) for name, array in arrays.items()}
    )


def read_dtype(record: Any) -> Any:
    """Return the dtype that an accepted record travelled in."""
    name = "S" if "S" in record else "b"
    return str(record[name].numpy().dtype)


def put(array: Any, value: Any, position: int) -> Any:
    """Return a copy with a number at a place, as near as its type allows."""
    changed = array.copy()
    if array.dtype.kind == "i":
        value = int(value) if math.isfinite(value) else -1
        value = min(max(value, -(2**63)), 2**63 - 1)
    changed.reshape(-1)[position] = value
    return changed


def malform(arrays: Any, rng: Any) -> None:
    """Change names, types, shapes or values of one array."""
    name = str(rng.choice(list(arrays)))
    array = np.asarray(arrays[name])
    kinds = ["int64", "int8", "float16", "float32", "float64", "complex64", ">i8"]
    match rng.integers(7):
        case 0:
            del arrays[name]
        case 1:
            other = str(rng.choice([*arrays, "other", "A", "R"]))
            arrays[other] = arrays.pop(name)
        case 2:
            arrays[name] = array.astype(str(rng.choice([*kinds, "S3", "bool"])))
        case 3:
            shapes = [array[None], array.reshape(-1), array.reshape(-1)[:-1]]
            arrays[name] = [*shapes, array.T, np.zeros((0, 7))][rng.integers(5)]
        case 4:
            arrays[name] = rng.permutation(array)
        case _ if array.size:
            value = NUMBERS[rng.integers(len(NUMBERS))]
            arrays[name] = put(array, value, rng.integers(array.size))


def lie_in_the_header(arrays: Any, rng: Any) -> None:
    """Change one or two of version, form, dtype, d, C, n, r and C_k."""
    header = arrays["header"].copy()
    for _ in range(rng.integers(1, 3)):
        header[rng.integers(8)] += rng.choice([-7, -1, 1, 2, 1000, 2**40, 2**62])
    arrays["header"] = header


def contradict(arrays: Any, rng: Any) -> None:
    """Leave the form as it is, and make A, b and the counts disagree."""
    names = [name for name in arrays if name not in ("header", "classes", "pivots")]
    name = str(rng.choice(names))
    array = arrays[name]
    if name == "counts":
        change = rng.integers(-3, 30, size=array.shape)
        arrays["counts"] = array + change
        arrays["header"] = arrays["header"].copy()
        arrays["header"][5] += change.sum()
        return
    factor = rng.choice([-1, 0, 0.3, 0.9, 1.1, 3, 1e3, 1e30])
    match rng.integers(4):
        case 0:
            arrays[name] = array * array.dtype.type(min(factor, 1e4))
        case 1:
            noise = rng.normal(size=array.shape) * rng.choice([0.01, 1, 100])
            arrays[name] = array + noise.astype(array.dtype)
        case 2:
            arrays[name] = np.ascontiguousarray(array[..., ::-1])
        case _ if array.size:
            changed = array.copy().reshape(-1)
            changed[rng.integers(array.size)] *= array.dtype.type(min(factor, 1e4))
            arrays[name] = changed.reshape(array.shape)
    if name == "A" and arrays[name].ndim == 2 and rng.random() < 0.9:
        arrays[name] = (arrays[name] + arrays[name].T) / array.dtype.type(2)


def flip_bits(arrays: Any, rng: Any) -> Any:
    """Return the record with bits of the serialised bytes flipped, or bytes cut."""
    record = to_record(arrays)
    for _ in range(rng.integers(1, 4)):
        array = record[str(rng.choice(list(record)))]
        data = bytearray(array.data)
        if not data:
            continue
        if rng.random() < 0.1:
            data = data[: rng.integers(len(data))]
        else:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        array.data = bytes(data)
    return record


def lie_about_arrays(arrays: Any, rng: Any) -> Any:
    """Return the record with other dtypes, shapes and formats beside the bytes."""
    record = to_record(arrays)
    name = str(rng.choice(list(record)))
    data = [record[name].data, b"", b"PK\x03\x04", b"\x80\x04K\x01."][rng.integers(4)]
    shape = [(2**40,), (-1, 3), (), (D, D)][rng.integers(4)]
    kind = str(rng.choice(["float64", "O", "nonsense", "int64"]))
    stype = str(rng.choice(["numpy.ndarray", "torch", "pickle"]))
    record[name] = Array(kind, shape, stype, data)
    return record


def odd_reply(arrays: Any, rng: Any) -> Any:
    """Return a reply of other records than the one asked for."""
    record = to_record(arrays)
    replies = [
        RecordDict(),
        RecordDict({"arrays": MetricRecord({"n": 3})}),
        RecordDict({"arrays": ConfigRecord({"header": b"12345678"})}),
        RecordDict({"arrays": record}),
        RecordDict({"arrays": record, "config": ConfigRecord({"digest": 3})}),
        RecordDict({"arrays": record, "config": MetricRecord({"digest": 3})}),
        reply_of(ArrayRecord()),
        RecordDict({**reply_of(record), "m": MetricRecord({"x": 1.0})}),
        Error(code=0, reason=""),
        Error(code=2**31, reason="\x00" * 100),
    ]
    return replies[rng.integers(len(replies))]


def hostile_reply(rng: Any) -> Any:
    """Return the content of one hostile reply."""
    arrays = valid_arrays(rng)
    way = rng.integers(10)
    if way == 0:
        return odd_reply(arrays, rng)
    if way == 1:
        return reply_of(lie_about_arrays(arrays, rng))
    if way in (2, 3):
        return reply_of(flip_bits(arrays, rng))
    # What keeps the form comes first: the others may leave nothing to change.
    changes = [contradict, lie_in_the_header, malform]
    chosen = rng.choice(3, size=rng.integers(1, 3), p=[0.6, 0.15, 0.25])
    for change in sorted(chosen):
        changes[change](arrays, rng)
    return reply_of(to_record(arrays))


def examine(content: Any) -> bool:
    """Send a reply to the server; return whether it was counted, rightly."""
    stats = receive(content)
    if stats is None:
        return False
    record = content.array_records["arrays"]
    check_possible(stats, ROUNDING[read_dtype(record)])
    return True


@pytest.mark.parametrize("seed", range(10))
def test_hostile_replies_never_crash_the_server_or_reach_the_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counted = sum(examine(hostile_reply(rng)) for _ in range(1_000))
    # Some changes are harmless, a flipped bit of rounding for one.
    assert 0 < counted < 350


def test_the_records_that_are_changed_are_counted_unchanged() -> None:
    for arrays in honest_records():
        assert examine(reply_of(to_record(arrays)))


def test_hostile_clients_leave_the_solution_of_the_others_as_it_is() -> None:
    rng = np.random.default_rng(1)
    Z, y = samples(rng, 60)
    honest = [(Z[i : i + 6], y[i : i + 6]) for i in range(0, 60, 6)]

    def node(k: int) -> Any:
        if k % 10:
            content = hostile_reply(np.random.default_rng(k))
        else:
            record = pack_statistics(*honest[k // 10], C, "factor", "float64")
            content = reply_of(record)
        return lambda message: Message(content, reply_to=message)

    names = {str(k): NODE + k for k in range(100)}
    fed3r = make_server(names, 20, solver=HeadSolver(given=HeadOptions(0.1)))
    fed3r.start(SpyGrid({NODE + k: node(k) for k in range(100)}), ArrayRecord())
    counted = fed3r.sampler.counted
    assert counted >= {str(k) for k in range(0, 100, 10)}
    expected = RidgeStatistics.of(Z, y, C)
    for k in range(100):
        if k % 10 and str(k) in counted:
            expected = expected + receive(hostile_reply(np.random.default_rng(k)))
    W = solve_ridge(fed3r.accumulator.release(), 0.1)
    torch.testing.assert_close(W, solve_ridge(expected, 0.1), rtol=1e-9, atol=1e-9)


ANY_ARRAY = arrays_of.arrays(
    st.sampled_from(["int64", "float16", "float32", "float64", "uint8", "bool"]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8),
)
NAMES = st.sampled_from(["header", "classes", "counts", "pivots", "R", "S", "A", "b"])


@settings(max_examples=300, suppress_health_check=FIXTURES)
@given(st.dictionaries(NAMES, ANY_ARRAY, max_size=8))
def test_arrays_of_any_kind_are_refused(arrays: Any) -> None:
    assert receive(reply_of(to_record(arrays))) is None


@settings(max_examples=700, suppress_health_check=FIXTURES)
@given(
    st.integers(0, 2**32),
    st.dictionaries(
        NAMES,
        st.tuples(st.integers(0, 10**4), st.floats(width=64) | st.integers(-9, 9)),
        min_size=1,
    ),
)
def test_any_numbers_in_an_honest_record_are_refused_or_possible(
    seed: int, changes: Any
) -> None:
    arrays = valid_arrays(np.random.default_rng(seed))
    for name, (position, value) in changes.items():
        if name in arrays and arrays[name].size:
            array = arrays[name]
            arrays[name] = put(array, value, position % array.size)
    examine(reply_of(to_record(arrays)))
