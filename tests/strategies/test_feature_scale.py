"""Features of no known range: whoever's are far larger than the others' is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fed3r_app.core import Limits, RidgeStatistics
from strategies import Accumulator, ClientRegistry, CohortSampler, Fed3R
from tests.harness.grid import SpyGrid
from tests.harness.replies import send_statistics

D, C = 5, 3


def samples(client: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(client)
    return scale * torch.from_numpy(rng.normal(size=(6, D))), torch.arange(6) % C


def of_client(client: int) -> RidgeStatistics:
    Z, y = samples(client)
    return RidgeStatistics.of(Z, y, C)


def node(client: int, scale: float) -> Any:
    Z, y = samples(client, scale)
    return lambda message: send_statistics(message, Z, y, C)


def collect(scales: list[float], start: Any = None, **options: Any) -> Fed3R:
    grid = SpyGrid({101 + i: node(i, scale) for i, scale in enumerate(scales)}, None)
    names = {str(i): 101 + i for i in range(len(scales))}
    sampler = CohortSampler(tuple(names), per_round=0, seed=0)
    accumulator = Accumulator(start or RidgeStatistics.zeros(D, C), **options)
    fed3r = Fed3R(ClientRegistry(names), sampler, accumulator)
    fed3r.start(grid, ArrayRecord())
    return fed3r


@pytest.mark.parametrize("place", [0, 3, 9])
@pytest.mark.parametrize("scale", [6.0, 1e12])
def test_one_that_is_far_larger_is_refused_wherever_it_comes(
    place: int, scale: float
) -> None:
    scales = [1.0] * 10
    scales[place] = scale
    fed3r = collect(scales)
    assert fed3r.sampler.missing == (str(place),)
    assert "ten times the median of the other" in fed3r.sampler.failures[str(place)]
    parts = [of_client(i) for i in range(10) if i != place]
    expected = sum(parts[1:], start=parts[0])
    torch.testing.assert_close(fed3r.accumulator.release().A, expected.A)


def test_what_differs_by_less_is_counted() -> None:
    assert not collect([1.0, 1.5, 0.5, 1.0, 2.0, 1.0]).sampler.missing


def test_what_was_counted_before_is_one_of_the_others() -> None:
    start = of_client(7)
    assert collect([1.0, 1e6], start).sampler.missing == ("1",)


def test_where_the_range_is_known_nothing_waits() -> None:
    low, high = torch.full((D,), -1e9), torch.full((D,), 1e9)
    limits = Limits(low.double(), high.double())
    assert not collect([1.0, 1.0, 1e6], limits=limits).sampler.missing


def test_a_client_that_replies_twice_is_counted_once() -> None:
    def twice(message: Message) -> Any:
        return [node(0, 1.0)(message), node(0, 1.0)(message)]

    grid = SpyGrid({101: twice}, None)
    sampler = CohortSampler(("0",), per_round=0, seed=0)
    accumulator = Accumulator(RidgeStatistics.zeros(D, C))
    fed3r = Fed3R(ClientRegistry({"0": 101}), sampler, accumulator)
    requests = fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    fed3r.aggregate_train(1, twice(next(requests)))
    assert fed3r.accumulator.n == 6
