"""Nodes that live in this process."""

from tests.harness.fixtures import (
    _a_run,
    fail,
    make_grid,
    reply_with,
    say_hello,
    send_statistics,
)

__all__ = [
    "_a_run",
    "fail",
    "make_grid",
    "reply_with",
    "say_hello",
    "send_statistics",
]
