"""What is private to Flower: message ids, the identity of a process, and its end.

Flower sets the first two itself where a SuperLink carries the messages. Code that
carries them in another way sets them here and nowhere else, so that an upgrade of
Flower has one place to break.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Message
from flwr.supercore.exit import exit_handler
from flwr.supercore.task_identity import TaskIdentity


def stamp(message: Message, message_id: str, src_node_id: int) -> None:
    """Set the id and the sender of a message, as a SuperLink does on its arrival."""
    metadata = message.metadata.__dict__
    metadata["_message_id"], metadata["_src_node_id"] = message_id, src_node_id


def enter_run(run_id: int, node_id: int, task_id: int) -> None:
    """Set the identity that Flower writes into every new message of this process."""
    TaskIdentity.run_id, TaskIdentity.node_id = run_id, node_id
    TaskIdentity.task_id = task_id


def before_exit(action: Callable[[], None]) -> Callable[[], None]:
    """Let a process of Flower's do something when a signal ends it.

    However long it takes: Flower kills what needs more than five seconds afterwards.
    Return what takes the action back.
    """
    handlers = exit_handler.registered_exit_handlers
    exit_handler.add_exit_handler(action, run_before_force_exit=True)
    added = handlers[-1]

    def cancel() -> None:
        if added in handlers:
            handlers.remove(added)

    return cancel
