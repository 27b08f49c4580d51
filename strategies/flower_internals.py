"""What is private to Flower: message ids and the identity of the process.

Flower sets both itself where a SuperLink carries the messages. Code that carries them
in another way sets them here and nowhere else, so that an upgrade of Flower has one
place to break.
"""

from __future__ import annotations

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity


def stamp(message: Message, message_id: str, src_node_id: int) -> None:
    """Set the id and the sender of a message, as a SuperLink does on its arrival."""
    metadata = message.metadata.__dict__
    metadata["_message_id"], metadata["_src_node_id"] = message_id, src_node_id


def enter_run(run_id: int, node_id: int, task_id: int) -> None:
    """Set the identity that Flower writes into every new message of this process."""
    TaskIdentity.run_id, TaskIdentity.node_id = run_id, node_id
    TaskIdentity.task_id = task_id
