"""Replies of nodes that are functions."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Error, Message, RecordDict

from fed3r_app.core import FeatureMoments
from fed3r_app.wire import Hello, add_digest, pack_hello, pack_statistics


def fail(message: Message, reason: str = "It broke.") -> Message:
    return Message(Error(code=0, reason=reason), reply_to=message)


def say_hello(
    message: Message,
    client: str,
    num_partitions: int = 0,
    moments: FeatureMoments | None = None,
) -> Message:
    content = pack_hello(Hello(client, num_partitions, moments))
    return Message(content, reply_to=message)


def reply_with(message: Message, **records: Any) -> Message:
    return Message(RecordDict(records), reply_to=message)


def send_statistics(
    message: Message,
    Z: Any,
    y: Any,
    num_classes: int,
    form: str = "factor",
    dtype: str = "float64",
    digest: str = "0" * 64,
) -> Message:
    """Return a reply with the statistics of some samples, float64 unless told."""
    Z, y = torch.as_tensor(Z), torch.as_tensor(y)
    record = pack_statistics(Z, y, num_classes, form, dtype)
    made = reply_with(message, arrays=record)
    add_digest(made.content, digest, None)
    return made
