"""Statistics are values: the laws of + and -, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import RidgeStatistics, solve_ridge
from tests.harness.samples import Draw, assert_same, parts_of

KINDS = st.sampled_from(["normal", "relu", "integer"])


def assert_close(one: Any, other: Any, scale: Any) -> None:
    """Sums of a few terms of size scale agree to a few roundings of it."""
    assert_same(one, other, atol=16 * torch.finfo(torch.float64).eps * scale)


def largest(stats: Any) -> float:
    return float(stats.A.diagonal().max())


@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_statistics_are_sums_over_samples_in_float64(
    draw: Draw, kind: str, dtype: Any
) -> None:
    Z, y = draw(kind, 20, 7, 4, seed=0)
    Z = Z.to(dtype)
    stats = RidgeStatistics.of(Z, y, 4)
    naive = RidgeStatistics.zeros(7, 4)
    for z, label in zip(Z.double(), y, strict=True):
        naive.A.add_(torch.outer(z, z))
        naive.b[:, label] += z
        naive.counts[label] += 1
    assert_close(stats, naive, largest(naive))
    assert (stats.d, stats.num_classes, stats.n) == (7, 4, 20)
    assert stats.A.device == Z.device


@pytest.mark.parametrize(("n", "d"), [(1, 7), (50, 33), (13, 500), (300, 129)])
def test_A_is_symmetric_to_the_last_bit(draw: Draw, n: int, d: int) -> None:
    Z, y = draw("normal", n, d, 2, seed=1)
    A = RidgeStatistics.of(Z, y, 2).A
    assert torch.equal(A, A.T)


def test_no_samples_give_the_empty_statistics() -> None:
    no_labels = torch.zeros(0, dtype=torch.int64)
    nothing = RidgeStatistics.of(torch.zeros(0, 3), no_labels, 2)
    assert_same(nothing, RidgeStatistics.zeros(3, 2))


@settings(max_examples=30)
@given(kind=KINDS, seed=st.integers(0, 999))
def test_the_empty_statistics_are_neutral(draw: Draw, kind: str, seed: int) -> None:
    stats = RidgeStatistics.of(*draw(kind, 9, 5, 3, seed), 3)
    empty = RidgeStatistics.zeros(5, 3)
    for total in (stats + empty, empty + stats, stats - empty):
        assert_same(total, stats)


@settings(max_examples=30)
@given(kind=KINDS, seed=st.integers(0, 999), sizes=st.tuples(*[st.integers(0, 12)] * 3))
def test_addition_commutes_and_associates(
    draw: Draw, kind: str, seed: int, sizes: Any
) -> None:
    one, two, three = (
        RidgeStatistics.of(*draw(kind, size, 5, 3, seed + shift), 3)
        for shift, size in enumerate(sizes)
    )
    scale = largest(one + two + three)
    assert_close(one + two, two + one, scale)
    assert_close((one + two) + three, one + (two + three), scale)


@settings(max_examples=30)
@given(kind=KINDS, seed=st.integers(0, 999), leaving=st.integers(0, 20))
def test_added_then_subtracted_is_never_added(
    draw: Draw, kind: str, seed: int, leaving: Any
) -> None:
    stays = RidgeStatistics.of(*draw(kind, 15, 5, 3, seed), 3)
    leaves = RidgeStatistics.of(*draw(kind, leaving, 5, 3, seed + 1), 3)
    total = stays + leaves
    assert_close(total - leaves, stays, largest(total))


def test_a_class_that_has_left_keeps_no_rounding_errors() -> None:
    # 0.1 + 0.2 - 0.1 - 0.2 is 3e-17, which the normalisation would make 1.
    Z = torch.tensor([[0.3], [0.1], [0.2]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    total = RidgeStatistics.of(Z, y, 2)
    singles = [RidgeStatistics.of(Z[i : i + 1], y[i : i + 1], 2) for i in (1, 2)]
    rest = total - singles[0] - singles[1]
    assert rest.counts.tolist() == [1, 0]
    assert rest.b[:, 1].tolist() == [0.0]
    assert solve_ridge(rest, 0.1)[:, 1].tolist() == [0.0]


def test_operations_leave_their_operands_alone(draw: Draw) -> None:
    one = RidgeStatistics.of(*draw("normal", 9, 5, 3, 0), 3)
    two = RidgeStatistics.of(*draw("normal", 9, 5, 3, 0), 3)
    before = RidgeStatistics(*parts_of(one))
    _ = one + two, one - two, one.to("cpu")
    assert_same(one, before)


def test_subtracting_more_than_there_is_is_refused(draw: Draw) -> None:
    few = RidgeStatistics.of(*draw("normal", 3, 4, 2, 0), 2)
    many = RidgeStatistics.of(*draw("normal", 30, 4, 2, 0), 2)
    with pytest.raises(ValueError, match="must be part of the total; class"):
        few - many


@pytest.mark.parametrize("operation", ["__add__", "__sub__"])
@pytest.mark.parametrize("shape", [(5, 3), (4, 2)])
def test_statistics_of_another_space_are_refused(operation: Any, shape: Any) -> None:
    here = RidgeStatistics.zeros(4, 3)
    with pytest.raises(
        ValueError,
        match=rf"must agree on \(d, C\); got \(4, 3\) and \({shape[0]}, {shape[1]}\)",
    ):
        getattr(here, operation)(RidgeStatistics.zeros(*shape))


def test_arrays_and_labels_of_any_integer_type_are_taken_and_sum_adds_up() -> None:
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((12, 4)), rng.integers(3, size=12)
    whole = RidgeStatistics.of(torch.from_numpy(Z), torch.from_numpy(y), 3)
    parts = [
        RidgeStatistics.of(Z[rows], y[rows].astype(dtype), 3)
        for rows, dtype in ((slice(5), "int32"), (slice(5, 12), "uint8"))
    ]
    total = sum(parts)
    assert isinstance(total, RidgeStatistics)
    torch.testing.assert_close(total.A, whole.A)
    torch.testing.assert_close(total.b, whole.b)
    assert torch.equal(total.counts, whole.counts)
    with pytest.raises(TypeError):
        1 + whole


FINE, LABELS = torch.zeros(2, 1), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("Z", "y", "match"),
    [
        *(
            (
                torch.tensor([[0.0], [bad]]),
                LABELS,
                r"must be finite, got .* 1 of 2 rows",
            )
            for bad in (math.nan, math.inf, -math.inf)
        ),
        (FINE, LABELS - 1, r"Labels must lie in \[0, 2\), got -1 to 0"),
        (FINE, LABELS + 1, r"Labels must lie in \[0, 2\), got 1 to 2"),
        (FINE, LABELS.double(), "Labels must be whole numbers, got"),
        *(
            (torch.zeros(shape), LABELS, r"must have shapes \(n, d\) and \(n,\)")
            for shape in [(2,), (2, 2, 2), (3, 1)]
        ),
    ],
)
def test_damaged_samples_are_refused(Z: Tensor, y: Tensor, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        RidgeStatistics.of(Z, y, 2)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    A, b = torch.zeros(3, 3).double(), torch.zeros(3, 2).double()
    counts = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"must have shapes \(d, d\), \(d, C\)"):
        RidgeStatistics(A[:2], b, counts)
    with pytest.raises(ValueError, match=r"got .* and \(1,\)"):
        RidgeStatistics(A, b, counts[:1])
    with pytest.raises(TypeError, match="must be float64, float64 and int64"):
        RidgeStatistics(A.float(), b, counts)
