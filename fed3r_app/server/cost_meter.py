"""What an exchange of statistics costs, added to a run's costs as it goes on."""

from __future__ import annotations

from typing import NamedTuple

from fed3r_app.core import FeatureMap
from fed3r_app.core.costs import (
    class_means_upload_bytes,
    statistics_flops,
    statistics_upload_bytes,
)
from fed3r_app.runs.recorder import Recorder
from fed3r_app.server.context import RunContext
from strategies import Fed3R


class _Exchanged(NamedTuple):
    """Bytes so far, and the clients and samples in the sums."""

    up: int
    down: int
    clients: int
    samples: int


class StatisticsCosts:
    """Counts what is new each time, so that it may be called amid a round.

    Parameters
    ----------
    context : RunContext
        The run.
    feature_map : FeatureMap
        It fixes the size of the statistics.
    recorder : Recorder
        Where the costs go.
    clients, samples : int
        In the sums from the beginning; an earlier part of the run has paid for them.
    """

    def __init__(
        self,
        context: RunContext,
        feature_map: FeatureMap,
        recorder: Recorder,
        clients: int,
        samples: int,
    ) -> None:
        self._shape = (feature_map.dim, context.num_classes)
        self._recorder = recorder
        self._paper_bytes = (
            class_means_upload_bytes
            if context.config.method == "fedncm"
            else statistics_upload_bytes
        )
        self._flops_per_sample = statistics_flops(
            1, *self._shape, context.forward_flops
        )
        self._counted = _Exchanged(0, 0, clients, samples)

    def count(self, strategy: Fed3R) -> None:
        """Count what a strategy has exchanged since the last time."""
        before = self._counted
        samples = strategy.num_examples
        self._counted = now = _Exchanged(
            strategy.upload_bytes,
            strategy.download_bytes,
            len(strategy.sampler.counted),
            before.samples if samples is None else samples,
        )
        self._recorder.add_costs(
            up=now.up - before.up,
            down=now.down - before.down,
            paper_up=self._paper_bytes(*self._shape, now.clients - before.clients),
            flops=self._flops_per_sample * (now.samples - before.samples),
        )

    def count_samples(self, samples: int) -> None:
        """Count the computing for samples whose number was not told before."""
        new = samples - self._counted.samples
        self._recorder.add_costs(flops=self._flops_per_sample * new)
        self._counted = self._counted._replace(samples=samples)
