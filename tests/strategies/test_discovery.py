"""The first exchange: who is there, under which name, in which order."""

import threading
import time
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fed3r_app.core import FeatureMoments
from fed3r_app.errors import RunError
from strategies import ClientDiscovery, ClientRegistry
from tests.harness.grid import SpyGrid
from tests.harness.replies import fail, say_hello


def node(client: str, num_partitions: int = 0, moments: Any = None) -> Any:
    """Return a node that says hello under a name."""
    return lambda message: say_hello(message, client, num_partitions, moments)


def meet_clients(
    grid: Any,
    wait_for: int = 0,
    timeout: float = 10,
    with_moments: bool = False,
    **options: Any,
) -> ClientRegistry:
    discovery = ClientDiscovery(grid, timeout=timeout, **options)
    discovery.gather(wait_for, with_moments)
    return discovery.registry


def test_clients_are_sorted_by_number_and_names_come_last() -> None:
    names = ["10", "b", "2", "a", "1"]
    grid = SpyGrid({100 + i: node(name) for i, name in enumerate(names)})
    registry = meet_clients(grid, wait_for=5)
    assert registry.clients == ("1", "2", "10", "a", "b")
    assert registry.nodes["2"] == 102


def test_the_order_of_the_nodes_does_not_show() -> None:
    names = [str(i) for i in range(20)]
    one = SpyGrid({100 + i: node(name, 20) for i, name in enumerate(names)})
    other = SpyGrid({900 - i: node(name, 20) for i, name in enumerate(names)}, seed=1)
    rosters = [meet_clients(grid) for grid in (one, other)]
    assert rosters[0].clients == rosters[1].clients


def test_nodes_that_appear_late_are_waited_for() -> None:
    grid = SpyGrid({1: node("0", 3)})

    def arrive() -> None:
        for i in (1, 2):
            time.sleep(0.3)
            grid.nodes[1 + i] = node(str(i), 3)

    thread = threading.Thread(target=arrive)
    thread.start()
    registry = meet_clients(grid)
    thread.join()
    assert registry.clients == ("0", "1", "2")


def test_each_node_is_asked_once() -> None:
    grid = SpyGrid({1 + i: node(str(i), 40) for i in range(40)})
    meet_clients(grid)
    assert len(grid.log) == 40


def test_wait_for_goes_before_what_the_clients_say() -> None:
    grid = SpyGrid({1: node("0", 9), 2: node("1", 9)})
    assert len(meet_clients(grid, wait_for=2).clients) == 2


def test_too_few_clients_end_in_a_sentence_with_both_numbers() -> None:
    grid = SpyGrid({1: node("0", 3)})
    with pytest.raises(RunError, match=r"Only 1 of 3 expected .* wait-for"):
        meet_clients(grid, timeout=0.5)


def test_silent_nodes_end_in_a_sentence() -> None:
    grid = SpyGrid({1: lambda message: None})
    with pytest.raises(RunError, match=r"Only 0 of any expected"):
        meet_clients(grid, timeout=0.3)


def test_two_nodes_with_one_client_id_are_refused() -> None:
    grid = SpyGrid({1: node("a", 2), 2: node("a", 2)})
    with pytest.raises(RunError, match="client-id must be unique, got 'a'"):
        meet_clients(grid)


def test_nodes_that_split_the_data_otherwise_are_refused() -> None:
    grid = SpyGrid({1: node("0", 2), 2: node("1", 3)})
    with pytest.raises(RunError, match=r"num-partitions must be \d as .*would overlap"):
        meet_clients(grid)
    registry = meet_clients(grid, strict=False)
    assert len(registry.clients) == len(registry.refused) == 1


def test_an_error_is_asked_again() -> None:
    tries = iter(range(10))
    good = node("0", 1)
    grid = SpyGrid(
        {1: lambda message: good(message) if next(tries) == 2 else fail(message)}
    )
    assert meet_clients(grid, max_retries=2).clients == ("0",)


def test_a_node_that_goes_and_comes_back_is_no_failure() -> None:
    def leave(message: Message) -> Message:
        del grid.nodes[1]
        threading.Timer(0.3, grid.nodes.__setitem__, (1, node("0", 1))).start()
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Gone."), reply_to=message)

    grid = SpyGrid({1: leave})
    assert meet_clients(grid, max_retries=0).clients == ("0",)


def test_an_error_that_stays_is_told_in_the_client_s_words() -> None:
    grid = SpyGrid({1: lambda message: fail(message, "No such disk.")})
    with pytest.raises(RunError, match=r"first exchange: No such disk\."):
        meet_clients(grid, max_retries=2)
    assert len(grid.log) == 3


def test_moments_add_up_over_clients() -> None:
    Z = torch.arange(12.0).reshape(4, 3)
    parts = [FeatureMoments.of(part) for part in Z.split(2)]
    grid = SpyGrid({1 + i: node(str(i), 2, part) for i, part in enumerate(parts)})
    moments = meet_clients(grid, with_moments=True).moments
    assert moments is not None
    assert moments.n == 4
    assert moments.sigma() == pytest.approx(FeatureMoments.of(Z).sigma())


def test_what_travelled_is_counted() -> None:
    grid = SpyGrid({1: node("0", 1)})
    registry = meet_clients(grid)
    assert 0 < registry.traffic.up < 100
    assert 0 < registry.traffic.down < 100
