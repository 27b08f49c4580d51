"""Messages out and replies in, as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from flwr.app import Message
from flwr.serverapp import Grid

# Flower's simulation scans every stored message for every node, again and again: more
# messages at once than this make it slower, not faster.
IN_FLIGHT = 32
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


def exchange(
    grid: Grid, messages: Iterable[Message], *, timeout: float
) -> Iterator[Message]:
    """Yield the replies to messages as they arrive, at most ``IN_FLIGHT`` under way.

    Unlike ``Grid.send_and_receive`` it holds no reply back: the caller folds each one
    and drops it, so memory does not grow with the number of clients.

    Parameters
    ----------
    grid : Grid
        Where to push and pull.
    messages : Iterable[Message]
        What to send; taken from the iterable only when there is room.
    timeout : float
        Seconds from sending a message after which its reply is no longer waited for.
        A node that is silent yields nothing.
    """
    waiting: dict[str, float] = {}
    queue = iter(messages)
    pause = _SHORTEST_PAUSE
    while True:
        for message in islice(queue, IN_FLIGHT - len(waiting)):
            # One at a time: a node that is gone has its message dropped, unsaid.
            for message_id in grid.push_messages([message]):
                waiting[message_id] = time.monotonic() + timeout
        if not waiting:
            return
        replies = list(grid.pull_messages(list(waiting)))
        for reply in replies:
            waiting.pop(reply.metadata.reply_to_message_id, None)
            yield reply
        now = time.monotonic()
        waiting = {key: end for key, end in waiting.items() if end > now}
        pause = _SHORTEST_PAUSE if replies else min(pause * 1.5, _LONGEST_PAUSE)
        if waiting and not replies:
            time.sleep(pause)
