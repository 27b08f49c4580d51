"""The running sum is the plain sum, whatever comes in and when it is folded."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.core import RidgeStatistics, RunningSum
from tests.harness.samples import Draw, assert_same, make_factor, parts_of

D, C = 8, 3


def assert_same_sum(one: Any, other: Any) -> None:
    # Sums of at most some thousand terms of both signs: 1e3 eps of the largest.
    eps = torch.finfo(torch.float64).eps
    assert_same(one, other, atol=1e3 * eps * float(other.A.abs().max()))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=80),
    seed=st.integers(0, 999),
)
def test_it_is_the_plain_sum_for_any_mix_and_order(
    draw: Draw, sizes: Any, seed: int
) -> None:
    # Up to eight rows per factor and 256 until a fold: long lists cross it twice.
    start = RidgeStatistics.of(*draw("normal", 20, D, C, seed), C)
    clients = [draw("normal", n, D, C, seed + i + 1) for i, n in enumerate(sizes)]
    plain = sum((RidgeStatistics.of(*client, C) for client in clients), start=start)
    rng = np.random.default_rng(seed)
    running = RunningSum(start)
    for i in rng.permutation(len(clients)):
        make: Any = make_factor if rng.random() < 0.7 else RidgeStatistics.of
        running.add(make(*clients[i], C))
    assert running.n == plain.n
    assert_same_sum(running.value(), plain)


@pytest.mark.parametrize("added", [31, 32, 33, 64])
def test_nothing_is_lost_where_waiting_rows_are_folded(draw: Draw, added: Any) -> None:
    # Full-rank factors of eight rows: the 32nd fills the 256 rows that wait.
    running = RunningSum(RidgeStatistics.zeros(D, C))
    plain = RidgeStatistics.zeros(D, C)
    for seed in range(added):
        client = draw("normal", 12, D, C, seed)
        running.add(make_factor(*client, C))
        plain = plain + RidgeStatistics.of(*client, C)
    assert_same_sum(running.value(), plain)


@pytest.mark.parametrize(("d", "num_classes"), [(D, C), (D, 1), (1, C), (1, 1)])
def test_a_value_does_not_change_with_later_additions(
    draw: Draw, d: int, num_classes: int
) -> None:
    client = draw("normal", 12, d, num_classes, 0)
    running = RunningSum(RidgeStatistics.zeros(d, num_classes))
    running.add(make_factor(*client, num_classes))
    value = running.value()
    kept = RidgeStatistics(*parts_of(value))
    running.add(make_factor(*client, num_classes))
    running.add(RidgeStatistics.of(*client, num_classes))
    running.value()
    assert_same(value, kept)


@pytest.mark.parametrize(("d", "num_classes"), [(D, C), (D, 1), (1, C)])
def test_the_start_is_copied(draw: Draw, d: int, num_classes: int) -> None:
    start = RidgeStatistics.of(*draw("normal", 12, d, num_classes, 0), num_classes)
    kept = RidgeStatistics(*parts_of(start))
    running = RunningSum(start)
    running.add(RidgeStatistics.of(*draw("normal", 12, d, num_classes, 1), num_classes))
    running.value()
    assert_same(start, kept)


def test_the_sum_is_symmetric_to_the_last_bit(draw: Draw) -> None:
    running = RunningSum(RidgeStatistics.zeros(70, C))
    for seed in range(9):
        running.add(make_factor(*draw("normal", 50, 70, C, seed), C))
    A = running.value().A
    assert torch.equal(A, A.T)


@pytest.mark.parametrize("shape", [(D + 1, C), (D, C + 1)])
@pytest.mark.parametrize("make", [make_factor, RidgeStatistics.of])
def test_contributions_of_another_space_are_refused(
    draw: Draw, shape: Any, make: Any
) -> None:
    running = RunningSum(RidgeStatistics.zeros(D, C))
    with pytest.raises(ValueError, match=r"must agree on \(d, C\)"):
        running.add(make(*draw("normal", 5, *shape, 0), shape[1]))
    assert running.value().n == 0
