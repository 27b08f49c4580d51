"""Messages out, replies in: bounded, nothing held, nobody waited for in vain."""

import time
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata

from strategies.messaging import IN_FLIGHT, is_unavailable, stream_replies
from tests.harness.grid import SpyGrid
from tests.harness.spies import spy


def requests(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield Message(RecordDict(), dst_node_id=node, message_type="query.hello")


def echo(message: Message) -> Any:
    return Message(RecordDict(), reply_to=message)


def hundred() -> SpyGrid:
    return SpyGrid(dict.fromkeys(range(1, 101), echo))


def repliers(
    grid: SpyGrid, asked: Any = None, timeout: float = 10, **options: Any
) -> Any:
    """Return the nodes of all replies, in the order they came."""
    messages = requests(grid.nodes if asked is None else asked)
    replies = stream_replies(grid, messages, timeout=timeout, **options)
    return [reply.metadata.src_node_id for reply in replies]


def test_everybody_is_asked_and_every_reply_comes_once() -> None:
    assert sorted(repliers(hundred())) == list(range(1, 101))


def test_no_more_than_the_limit_are_under_way() -> None:
    grid = hundred()
    repliers(grid)
    assert grid.most_in_flight == IN_FLIGHT


def test_messages_are_made_only_when_there_is_room() -> None:
    grid = hundred()
    made = []

    def watched() -> Iterator[Any]:
        for request in requests(grid.nodes):
            made.append(request)
            yield request

    next(stream_replies(grid, watched(), timeout=10))
    assert len(made) == IN_FLIGHT


def test_a_reply_is_gone_when_the_next_is_asked_for() -> None:
    grid = hundred()
    seen = []
    for reply in stream_replies(grid, requests(grid.nodes), timeout=10):
        seen.append(weakref.ref(reply))
        del reply
        assert sum(ref() is not None for ref in seen) <= 1


def test_a_silent_node_is_not_waited_for_longer_than_the_timeout() -> None:
    grid = SpyGrid({1: echo, 2: lambda message: None, 3: echo})
    began = time.monotonic()
    assert sorted(repliers(grid, timeout=0.3)) == [1, 3]
    assert 0.3 <= time.monotonic() - began < 3


def test_silent_nodes_make_room_for_the_others_in_the_end() -> None:
    silent = dict.fromkeys(range(1, IN_FLIGHT + 1), lambda message: None)
    grid = SpyGrid(silent | {1000: echo})
    assert repliers(grid, timeout=0.1) == [1000]


def test_nodes_that_are_gone_don_t_keep_the_others_from_being_asked() -> None:
    # More than the limit in a row. Nothing waits for a timeout.
    gone, messages = range(1, IN_FLIGHT + 5), requests([*range(1, IN_FLIGHT + 5), 1000])
    replies = list(stream_replies(SpyGrid({1000: echo}), messages, timeout=1e6))
    assert [reply.metadata.src_node_id for reply in replies] == [*gone, 1000]
    assert [is_unavailable(reply) for reply in replies] == [True] * len(gone) + [False]


def test_a_reply_that_came_while_another_was_folded_is_not_late() -> None:
    slow = iter([None])
    # Node 2 has its reply ready only from the second look on.
    grid = SpyGrid({1: echo, 2: lambda message: next(slow, echo(message))})
    nodes = []
    for reply in stream_replies(grid, requests([1, 2]), timeout=0.2):
        nodes.append(reply.metadata.src_node_id)
        time.sleep(0.4)  # the caller takes its time
    assert nodes == [1, 2]


def test_the_superlink_s_error_for_a_node_counts_as_the_node_s() -> None:
    def gone(message: Message) -> Any:
        """What Flower says of a node that is unavailable: src_node_id is its own."""
        metadata = Metadata(
            run_id=1,
            message_id="",
            src_node_id=1,
            dst_node_id=1,
            reply_to_message_id=message.metadata.message_id,
            group_id="",
            created_at=time.time(),
            ttl=10.0,
            message_type=message.metadata.message_type,
        )
        return make_message(metadata, error=Error(3, "Node Unavailable"))

    grid = SpyGrid({42: gone})
    (reply,) = stream_replies(grid, requests([42]), timeout=10)
    assert reply.metadata.src_node_id == 42
    assert reply.has_error()
    assert reply.error.reason == "Node Unavailable"


def test_a_second_reply_to_the_same_request_is_dropped() -> None:
    grid = SpyGrid({1: lambda message: [echo(message), echo(message)]})
    assert repliers(grid) == [1]


def test_nobody_to_ask_is_no_reply() -> None:
    assert repliers(SpyGrid()) == []


def test_real_nodes_may_be_asked_all_at_once() -> None:
    grid = hundred()
    assert len(repliers(grid, in_flight=1000)) == grid.most_in_flight == 100


def test_requests_may_come_up_while_others_are_under_way() -> None:
    grid = SpyGrid(dict.fromkeys(range(1, 4), echo))
    replied: list[int] = []

    def one_after_the_other() -> Iterator[Any]:
        for request in requests(grid.nodes):
            known = len(replied)
            yield request
            while len(replied) == known:
                yield None  # nothing to ask before there is a reply

    for reply in stream_replies(grid, one_after_the_other(), timeout=10):
        replied.append(reply.metadata.src_node_id)
    assert replied == [1, 2, 3]
    assert grid.most_in_flight == 1


def test_replies_that_lie_ready_are_fetched_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = hundred()
    pulls = spy(monkeypatch, grid, "pull_messages")
    assert len(repliers(grid, in_flight=1000)) == 100
    fetched = [len(message_ids) for (message_ids,) in pulls]
    assert sum(fetched) == 100
    assert max(fetched) == IN_FLIGHT


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> Any:
        return self.now

    def sleep(self, seconds: Any) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_grow_with_the_silence_and_start_anew_with_a_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    # Not by its name, which is also that of the function.
    monkeypatch.setattr(import_module("strategies.messaging"), "time", clock)
    grid = SpyGrid(
        {
            1: lambda message: echo(message) if clock.now >= 50 else None,
            2: lambda message: None,
        }
    )
    for _ in stream_replies(grid, requests(grid.nodes), timeout=100):
        before = len(clock.pauses)
    assert clock.pauses[0] == clock.pauses[before] == 0.02
    assert clock.pauses[before - 1] == clock.pauses[-1] == max(clock.pauses) == 1.0
    assert len(clock.pauses) < 400  # hours are not waited busily


def test_every_minute_the_log_says_who_is_waited_for_and_how_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(import_module("strategies.messaging"), "time", clock)
    grid = SpyGrid(dict.fromkeys(range(1, 8), lambda message: None) | {8: echo})
    caplog.set_level("INFO", logger="flwr")
    names = "client-{}".format
    replies = stream_replies(grid, requests(grid.nodes), timeout=150, name=names)
    assert len(list(replies)) == 1
    first, second = [text for text in caplog.messages if "Waiting" in text]
    named = ", ".join(f"client-{node} (for 61 s)" for node in range(1, 6))
    assert first == f"Waiting for 7 clients: {named} and 2 more"
    assert "client-1 (for 2 min)" in second


def test_who_was_asked_just_now_is_not_called_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(import_module("strategies.messaging"), "time", clock)
    # One after the other, each takes 50 s.
    ready: dict[int, float] = {}

    def slow(message: Message) -> Any:
        node = message.metadata.dst_node_id
        began = ready.setdefault(node, clock.now)
        return echo(message) if clock.now - began > 50 else None

    caplog.set_level("INFO", logger="flwr")
    grid = SpyGrid(dict.fromkeys(range(1, 5), slow))
    assert len(repliers(grid, timeout=100, in_flight=1)) == 4
    assert clock.now > 200
    assert not [text for text in caplog.messages if "Waiting" in text]
