"""A client that would own the model: as many samples as it likes, labels flipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Context, RecordDict

from fed3r_app.core import RidgeStatistics
from fed3r_app.wire import name_arrays
from fed3r_app.wire.layout import Header


def flipped(stats: RidgeStatistics, copies: int = 1) -> RidgeStatistics:
    """Return the statistics of so many copies of samples, each of the class after."""
    b, counts = stats.b.roll(1, dims=1), stats.counts.roll(1)
    return RidgeStatistics(copies * stats.A, copies * b, copies * counts)


def dense_record(stats: RidgeStatistics) -> ArrayRecord:
    sizes = (stats.d, stats.num_classes, stats.n, 0, len(stats.classes))
    header = Header("dense", "float64", *sizes).array()
    arrays = [header, stats.counts.numpy(), stats.A.numpy(), stats.b.numpy()]
    return name_arrays(arrays)


@dataclass(frozen=True)
class Attacker:
    """Has a simulated client announce, and send, flipped samples; a hook of a grid.

    ``own`` are the statistics of what it has; 0 copies leave what it says as it is.
    """

    client: int
    own: RidgeStatistics
    announced: int = 0  # copies
    sent: int = 0

    def __call__(self, context: Context, request: Any, reply: RecordDict) -> None:
        if context.node_config["partition-id"] != self.client:
            return
        config: Any = reply.config_records.get("config", {})
        if "client-id" in config and self.announced:
            config["num-samples"] = self.announced * self.own.n
        if "digest" in config and self.sent:
            reply["arrays"] = dense_record(flipped(self.own, self.sent))
