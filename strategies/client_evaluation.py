"""Classifiers tried on the clients' own images: counts added up, never averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from logging import WARNING

from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.wire import count_bytes
from strategies.discovery import ClientRegistry
from strategies.messaging import stream_replies

EVALUATION = "evaluate.statistics"


def evaluate_on_clients(
    grid: Grid,
    registry: ClientRegistry,
    clients: Iterable[str],
    request: RecordDict,
    timeout: float,
) -> MetricRecord | None:
    """Return what a classifier gets right on some clients' own images, all together.

    None if nobody has an image to try it on.
    """
    size, asked = count_bytes(request), 0

    def requests() -> Iterator[Message]:
        nonlocal asked
        for client in clients:
            asked += 1
            node = registry.nodes[client]
            yield Message(request, dst_node_id=node, message_type=EVALUATION)

    replies = stream_replies(
        grid, requests(), timeout=timeout, in_flight=registry.in_flight
    )
    metrics = add_evaluations(replies)
    if metrics is not None:
        metrics["download-bytes"] = size * asked
    return metrics


def add_evaluations(replies: Iterable[Message]) -> MetricRecord | None:
    """Return the counts of all replies added up; None if there is no image in them."""
    correct = total = clients = upload_bytes = 0
    loss = 0.0
    for reply in replies:
        try:
            n, right, mean_loss = _read_evaluation(reply)
        except (KeyError, TypeError, ValueError) as error:
            log(WARNING, "An evaluation on a client failed: %s", error)
            continue
        upload_bytes += count_bytes(reply.content)
        correct, loss = correct + right, loss + n * mean_loss
        total, clients = total + n, clients + 1
    if not total:
        return None
    return MetricRecord(
        {
            "accuracy": correct / total,
            "loss": loss / total,
            "num-examples": total,
            "clients": clients,
            "upload-bytes": upload_bytes,
        }
    )


def _read_evaluation(reply: Message) -> tuple[int, int, float]:
    """Return n, the number of correct predictions and the mean loss of a reply."""
    if reply.has_error():
        raise ValueError(reply.error.reason)
    metrics = reply.content.metric_records["metrics"]
    n, correct = int(metrics["num-examples"]), int(metrics["correct"])  # type: ignore[arg-type]
    loss = float(metrics["loss"])  # type: ignore[arg-type]
    if not 0 <= correct <= n or not math.isfinite(loss):
        raise ValueError(f"{correct} of {n} correct, loss {loss}")
    return n, correct, loss
