"""Nodes that live in this process."""

from tests.harness.in_process import (
    _a_run,
    app_node,
    fail,
    make_grid,
    reply_with,
    say_hello,
    send_statistics,
)

__all__ = [
    "_a_run",
    "app_node",
    "fail",
    "make_grid",
    "reply_with",
    "say_hello",
    "send_statistics",
]
