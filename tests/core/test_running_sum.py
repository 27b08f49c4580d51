"""The running sum is the plain sum, whatever comes in and when it is folded."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import FactorBuilder, RidgeStatistics, RunningSum
from tests.harness.samples import Draw

D, C = 8, 3


def make_factor(Z: Tensor, y: Tensor, num_classes: Any = C) -> Any:
    builder = FactorBuilder(num_classes)
    builder.add(Z, y)
    return builder.build()


def assert_same_sum(one: Any, other: Any) -> None:
    # Sums of at most some thousand terms of both signs: 1e3 eps of the largest.
    tolerance = 1e3 * torch.finfo(torch.float64).eps * float(other.A.abs().max())
    torch.testing.assert_close(one.A, other.A, rtol=0, atol=tolerance)
    torch.testing.assert_close(one.b, other.b, rtol=0, atol=tolerance)
    assert torch.equal(one.counts, other.counts)


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
        client = clients[i]
        make: Any = make_factor if rng.random() < 0.7 else RidgeStatistics.of
        running.add(make(*client, C))
    assert running.n == plain.n
    assert_same_sum(running.value(), plain)


@pytest.mark.parametrize("added", [31, 32, 33, 64])
def test_nothing_is_lost_where_waiting_rows_are_folded(draw: Draw, added: Any) -> None:
    # Full-rank factors of eight rows: the 32nd fills the 256 rows that wait.
    running = RunningSum(RidgeStatistics.zeros(D, C))
    plain = RidgeStatistics.zeros(D, C)
    for seed in range(added):
        client = draw("normal", 12, D, C, seed)
        running.add(make_factor(*client))
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
    kept = value.A.clone(), value.b.clone(), value.counts.clone()
    running.add(make_factor(*client, num_classes))
    running.add(RidgeStatistics.of(*client, num_classes))
    running.value()
    assert all(map(torch.equal, kept, (value.A, value.b, value.counts)))


@pytest.mark.parametrize(("d", "num_classes"), [(D, C), (D, 1), (1, C)])
def test_the_start_is_copied(draw: Draw, d: int, num_classes: int) -> None:
    start = RidgeStatistics.of(*draw("normal", 12, d, num_classes, 0), num_classes)
    kept = start.A.clone(), start.b.clone(), start.counts.clone()
    running = RunningSum(start)
    running.add(RidgeStatistics.of(*draw("normal", 12, d, num_classes, 1), num_classes))
    running.value()
    assert all(map(torch.equal, kept, (start.A, start.b, start.counts)))


def test_the_sum_is_symmetric_to_the_last_bit(draw: Draw) -> None:
    running = RunningSum(RidgeStatistics.zeros(70, C))
    for seed in range(9):
        running.add(make_factor(*draw("normal", 50, 70, C, seed)))
    A = running.value().A
    assert torch.equal(A, A.T)


@pytest.mark.parametrize("shape", [(D + 1, C), (D, C + 1)])
@pytest.mark.parametrize("as_factor", [True, False])
def test_contributions_of_another_space_are_refused(
    draw: Draw, shape: Any, as_factor: Any
) -> None:
    d, num_classes = shape
    client = draw("normal", 5, d, num_classes, 0)
    make = make_factor if as_factor else RidgeStatistics.of
    running = RunningSum(RidgeStatistics.zeros(D, C))
    with pytest.raises(ValueError, match=r"must agree on \(d, C\)"):
        running.add(make(*client, num_classes))
    assert running.value().n == 0
