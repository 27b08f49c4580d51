"""Classifiers evaluated on the clients' own images: counts added, never averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fed3r_app.core import Metrics
from fed3r_app.progress import Progress
from fed3r_app.wire import count_bytes
from strategies.discovery import ClientRegistry
from strategies.messaging import Traffic, same_request

EVALUATION = "evaluate.statistics"


def evaluate_on_clients(
    grid: Grid,
    registry: ClientRegistry,
    clients: Iterable[str],
    request: RecordDict,
    timeout: float,
    traffic: Traffic,
) -> Metrics | None:
    """Return what a classifier gets right on some clients' own images, all together.

    None if no client has an image to try it on; ``traffic`` adds up the bytes.
    """
    nodes = [registry.nodes[client] for client in clients]
    requests = same_request(nodes, request, EVALUATION, traffic)
    total = Metrics(0, 0)
    with Progress("clients evaluated") as progress:
        replies = registry.stream_replies(grid, requests, timeout)
        for number, reply in enumerate(replies, 1):
            progress(number, len(nodes))
            try:
                total += _read_evaluation(reply)
            except (KeyError, TypeError, ValueError) as error:
                log(WARNING, "An evaluation on a client failed: %s", error)
                continue
            traffic.up += count_bytes(reply.content)
    return total if total.total else None


def _read_evaluation(reply: Message) -> Metrics:
    """Return the counts in a reply."""
    if reply.has_error():
        raise ValueError(reply.error.reason)
    metrics = reply.content.metric_records["metrics"]
    n, correct = int(metrics["num-examples"]), int(metrics["correct"])  # type: ignore[arg-type]
    loss = float(metrics["loss"])  # type: ignore[arg-type]
    if not 0 <= correct <= n or not math.isfinite(loss):
        raise ValueError(f"{correct} of {n} correct, loss {loss}")
    return Metrics(correct, n)
