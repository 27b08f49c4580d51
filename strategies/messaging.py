"""Messages out and replies in, as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from logging import INFO

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.wire import count_bytes
from fed3r_app.words import first_names, plural, roughly
from strategies.stopping import check_stopped

# Flower's simulation scans every stored message for every node, again and again: more
# messages at once than this make it slower, not faster.
IN_FLIGHT = 32
_LONGEST_REASON = 500
_MINUTE, _MOST_NAMED = 60.0, 5
_SHORTEST_PAUSE, _LONGEST_PAUSE, _IDLE_PAUSE = 0.02, 1.0, 0.2
# A pause is this share of the time since the last reply: replies don't lie about for
# long, which Flower's simulation would be slower for, and hours are not waited busily.
_PAUSE_SHARE = 0.05
_END = object()


@dataclass
class Traffic:
    """Bytes of the replies and of the requests so far."""

    up: int = 0
    down: int = 0

    def copy(self) -> Traffic:
        """Return the counts of this moment."""
        return replace(self)

    def since(self, earlier: Traffic) -> tuple[int, int]:
        """Return the bytes up and down since an earlier moment."""
        return self.up - earlier.up, self.down - earlier.down


def same_request(
    nodes: Iterable[int], content: RecordDict, message_type: str, traffic: Traffic
) -> Iterator[Message]:
    """Yield one request for each of some nodes, and add up the bytes."""
    size = count_bytes(content)
    for node in nodes:
        traffic.down += size
        yield Message(content, dst_node_id=node, message_type=message_type)


def stream_replies(
    grid: Grid,
    messages: Iterable[Message | None],
    *,
    timeout: float,
    in_flight: int = IN_FLIGHT,
    name: Callable[[int], str] = "node {}".format,
) -> Iterator[Message]:
    """Yield the replies to messages as they arrive, ``in_flight`` under way at most.

    Unlike ``Grid.send_and_receive`` it holds no reply back: the caller folds each one
    and drops it, so memory does not grow with the number of clients, however many have
    replied meanwhile.

    Parameters
    ----------
    grid : Grid
        Where to push and pull.
    messages : Iterable[Message or None]
        What to send; taken from the iterable only when there is room. None says that
        there is nothing to send now, but may be later.
    timeout : float
        Seconds from sending a message after which its reply is no longer waited for.
        A node that is silent yields nothing; one that is gone yields an error.
    in_flight : int
        Most messages under way at once.
    name : callable
        What a node is called where the log says, every minute, who is waited for.
    """
    waiting: dict[str, tuple[Message, float]] = {}
    minute = EveryMinute()
    queue, more = iter(messages), True
    last_reply = time.monotonic()
    while True:
        check_stopped()
        while more and len(waiting) < in_flight:
            message = next(queue, _END)
            more = message is not _END
            if not isinstance(message, Message):
                break
            # One at a time: Flower drops the message to a node it does not know, and
            # says so by an id that is empty or missing.
            message_ids = [each for each in grid.push_messages([message]) if each]
            for message_id in message_ids:
                waiting[message_id] = (message, time.monotonic() + timeout)
            if not message_ids:
                yield _unavailable(message, "its node is not connected")
        if not waiting and not more:
            return
        now = time.monotonic()  # before pulling: what has come by then is not late
        has_come = False
        for reply in _arrived(grid, list(waiting)):
            has_come = True
            request, _ = waiting.pop(reply.metadata.reply_to_message_id, (None, now))
            if request is not None:
                yield _attributed_to_asked_node(reply, request)
        waiting = {key: value for key, value in waiting.items() if value[1] > now}
        if minute.is_due():
            _log_late(waiting.values(), now + timeout, name)
        if has_come:
            last_reply = time.monotonic()  # what the caller did meanwhile is no silence
        elif waiting or more:
            longest = _LONGEST_PAUSE if waiting else _IDLE_PAUSE
            share = _PAUSE_SHARE * (now - last_reply)
            time.sleep(min(max(share, _SHORTEST_PAUSE), longest))


class EveryMinute:
    """Says when something is due that is done once a minute."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _MINUTE

    def is_due(self) -> bool:
        """Return whether it is, and from then on wait for another minute."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _MINUTE
        return True


def _log_late(
    waiting: Iterable[tuple[Message, float]],
    latest: float,
    name: Callable[[int], str],
) -> None:
    """Say who was asked a minute ago or more, and has not replied.

    ``latest`` is the deadline of what is asked now: others were asked before.
    """
    late = [
        f"{name(message.metadata.dst_node_id)} (for {roughly(latest - deadline)})"
        for message, deadline in waiting
        if latest - deadline >= _MINUTE
    ]
    if late:
        count, named = plural(len(late), "client"), first_names(late, _MOST_NAMED)
        log(INFO, "Waiting for %s: %s", count, named)


def _arrived(grid: Grid, message_ids: list[str]) -> Iterator[Message]:
    """Yield the replies that have come, of which a few at a time are fetched."""
    for start in range(0, len(message_ids), IN_FLIGHT):
        replies = deque(grid.pull_messages(message_ids[start : start + IN_FLIGHT]))
        while replies:
            yield replies.popleft()


def _attributed_to_asked_node(reply: Message, request: Message) -> Message:
    """Return the reply, in the name of the node that was asked.

    For a node that is gone the SuperLink replies with an error, in its own name.
    """
    if reply.metadata.src_node_id == request.metadata.dst_node_id:
        return reply
    reason = reply.error.reason if reply.has_error() else "another node replied"
    return _unavailable(request, reason)


def _unavailable(request: Message, reason: str | None) -> Message:
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=request)


def is_unavailable(reply: Message) -> bool:
    """Return whether a reply says that the node is gone, which may come back."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


def is_permanent(reply: Message) -> bool:
    """Return whether a client says that it will fail again: settings or data."""
    code = ErrorCode.MOD_FAILED_PRECONDITION
    return reply.has_error() and reply.error.code == code


def one_line(words: str | None) -> str:
    """Return a peer's words for the log: one line, at most 500 characters."""
    line = "".join(c if c.isprintable() else " " for c in words or "").strip()
    return line[:_LONGEST_REASON] or "no reason given"
