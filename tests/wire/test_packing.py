"""What is packed comes back; what doesn't fit is refused."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import RidgeStatistics, RunningSum, StatisticsFactor, solve_ridge
from fed3r_app.wire import (
    FORMS,
    RecordError,
    StatisticsBuilder,
    name_arrays,
    pack_statistics,
    unpack_contribution,
    unpack_statistics,
)
from tests.harness.samples import Draw, parts_of

# Half the spacing of floats at 1: the relative error of one rounding.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
SIZES = [(0, 6, 3), (1, 6, 3), (2, 6, 3), (9, 6, 3), (40, 6, 3), (5, 1, 1), (30, 25, 9)]
sizes = pytest.mark.parametrize(("n", "d", "num_classes"), SIZES)


@sizes
@pytest.mark.parametrize("form", ["packed", "dense"])
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 0), ("float32", 2.0**-24)])
def test_sums_come_back_bit_for_bit_or_to_one_rounding(
    draw: Draw, n: int, d: int, num_classes: int, form: str, dtype: str, rtol: float
) -> None:
    Z, y = draw(n, d, num_classes, 0)
    expected = RidgeStatistics.of(Z, y, num_classes)
    record = pack_statistics(Z, y, num_classes, form, dtype)
    stats = unpack_statistics(record, (d, num_classes))
    torch.testing.assert_close(parts_of(stats), parts_of(expected), rtol=rtol, atol=0)


def test_large_dense_sums_are_symmetric_enough_to_arrive(draw: Draw) -> None:
    # Products of BLAS are symmetric only to rounding once they are blocked.
    Z, y = draw(13, 600, 5, 0)
    stats = unpack_statistics(pack_statistics(Z, y, 5, "dense", "float64"), (600, 5))
    assert torch.equal(stats.A, stats.A.T)


@sizes
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_factors_come_back_to_rounding(
    draw: Draw, n: int, d: int, num_classes: int, dtype: Any
) -> None:
    Z, y = draw(n, d, num_classes, 0)
    expected = RidgeStatistics.of(Z, y, num_classes)
    record = pack_statistics(Z, y, num_classes, "factor", dtype)
    stats = unpack_statistics(record, (d, num_classes))
    # |d(R'R)| <= 2 |dR|'|R| and |dR| <= u |R| (or half the least subnormal), while
    # the columns of R have the norms of those of Z, and those of S at most sqrt(n);
    # in float64 the QR itself adds its n d roundings.
    u = ROUNDING[dtype] + Z.numel() * ROUNDING["float64"]
    reach, labels = float(Z.norm()), n**0.5
    torch.testing.assert_close(stats.A, expected.A, rtol=0, atol=3 * u * reach**2)
    torch.testing.assert_close(stats.b, expected.b, rtol=0, atol=3 * u * reach * labels)
    assert torch.equal(stats.counts, expected.counts)


@settings(max_examples=80)
@given(
    sent=st.sampled_from([*product(FORMS, ["float64"]), ("factor", "float32")]),
    cuts=st.lists(st.integers(0, 120), max_size=30),
    seed=st.integers(0, 999),
)
def test_uploads_of_any_split_give_the_pooled_solution(
    draw: Draw, sent: tuple[str, str], cuts: Any, seed: int
) -> None:
    Z, y = draw(120, 20, 5, 0)
    test, _ = draw(500, 20, 5, 1)
    pooled = RidgeStatistics.of(Z, y, 5)
    expected = solve_ridge(pooled, 0.5)
    # Columns of zeros stay exact, so the eigenvalues above zero count: a condition
    # number of at most 50, times the rounding of float32, is 3e-6.
    w = torch.linalg.eigvalsh(pooled.A)
    w = w[w > 1e-9 * w.max()]
    assert float(w.max() / w.min()) < 50
    W = solve_ridge(stream_replies(Z, y, cuts, seed, *sent), 0.5)
    tolerance = {"float64": 1e-9, "float32": 1e-5}[sent[1]]
    assert float((W - expected).norm() / expected.norm()) <= tolerance
    assert torch.equal((test @ W).argmax(dim=1), (test @ expected).argmax(dim=1))


def stream_replies(
    Z: Tensor, y: Tensor, cuts: Any, seed: int, form: str, dtype: Any
) -> Any:
    """Return the sum of what clients, split at the cuts and shuffled, send."""
    order = np.random.default_rng(seed).permutation(len(Z))
    total = RunningSum(RidgeStatistics.zeros(Z.shape[1], 5))
    for rows in torch.from_numpy(order).tensor_split(sorted(cuts)):
        record = pack_statistics(Z[rows], y[rows], 5, form, dtype)
        total.add(unpack_contribution(record, (Z.shape[1], 5)))
    return total.value()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_the_order_of_a_clients_images_does_not_show_in_the_record(
    draw: Draw, form: str, n: int
) -> None:
    Z, y = draw(n, 12, 4, 0)
    order = np.random.default_rng(1).permutation(n)
    one = pack_statistics(Z, y, 4, form, "float64")
    other = pack_statistics(Z[order], y[order], 4, form, "float64")
    assert_same_record(one, other)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_cut_into_chunks_gives_the_same_record(
    draw: Draw, form: str, cuts: Any
) -> None:
    Z, y = draw(40, 12, 4, 0)
    builder = StatisticsBuilder(4, form)
    for rows in torch.arange(40).tensor_split(sorted(cuts)):
        builder.add(Z[rows], y[rows])
    whole = pack_statistics(Z, y, 4, form, "float64")
    assert_same_record(builder.pack("float64"), whole)


def assert_same_record(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name in one:
        left, right = one[name].numpy(), other[name].numpy()
        assert left.dtype == right.dtype and left.shape == right.shape
        # Features of size 1 with condition numbers below 1e4: 1e4 eps = 2e-12.
        atol = 1e-10 if left.dtype == np.float64 else 0
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 5])
def test_the_names_come_back_from_a_plain_list(draw: Draw, form: str, n: int) -> None:
    builder = StatisticsBuilder(3, form)
    builder.add(*draw(n, 6, 3, 0))
    record = builder.pack("float32")
    arrays = ArrayRecord(builder.arrays("float32")).to_numpy_ndarrays()
    named = name_arrays(arrays)
    assert list(named) == list(record)
    for name in record:
        assert named[name].data == record[name].data


def test_a_list_of_too_few_arrays_is_refused(draw: Draw) -> None:
    builder = StatisticsBuilder(3)
    builder.add(*draw(5, 6, 3, 0))
    with pytest.raises(RecordError, match=r"must hold \['header', .* got 3 arrays"):
        name_arrays(builder.arrays()[:3])
    with pytest.raises(RecordError, match="needs a header, got no arrays"):
        name_arrays([])


def test_a_factor_arrives_as_a_factor(draw: Draw) -> None:
    sent = pack_statistics(*draw(5, 12, 4, 0), 4)
    assert isinstance(unpack_contribution(sent, (12, 4)), StatisticsFactor)


@pytest.mark.parametrize(
    ("form", "dtype", "size"),
    [
        ("factor", "float16", 1e5),
        ("factor", "float32", 1e39),
        ("packed", "float32", 1e20),
        ("dense", "float32", 1e20),
        ("packed", "float64", 1e200),
        ("dense", "float64", 1e200),
    ],
)
def test_values_beyond_the_dtype_are_refused(
    draw: Draw, form: str, dtype: Any, size: Any
) -> None:
    Z, y = draw(5, 6, 3, 0)
    with pytest.raises(ValueError, match=f"passes the largest {dtype}"):
        pack_statistics(Z * size, y, 3, form, dtype)


def test_forms_and_dtypes_that_can_not_be_are_refused(draw: Draw) -> None:
    with pytest.raises(ValueError, match=r"upload must be one of .* got 'zip'"):
        StatisticsBuilder(3, "zip")
    with pytest.raises(ValueError, match=r"upload-dtype must be .* got 'int8'"):
        pack_statistics(*draw(5, 6, 3, 0), 3, "factor", "int8")
    for form in ("packed", "dense"):
        with pytest.raises(ValueError, match=f"'factor' only, got '{form}'"):
            pack_statistics(*draw(5, 6, 3, 0), 3, form, "float16")


@pytest.mark.parametrize("form", FORMS)
def test_a_builder_without_chunks_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match="needs to know d"):
        StatisticsBuilder(3, form).pack()
