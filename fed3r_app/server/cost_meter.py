"""What exchanges and training cost, added to a run's costs as they happen."""

from __future__ import annotations

from typing import NamedTuple

from fed3r_app.core.costs import (
    class_means_upload_bytes,
    statistics_flops,
    statistics_upload_bytes,
    trained_values,
    training_bytes,
    training_flops,
)
from fed3r_app.core.heads import HEADS
from fed3r_app.server.context import RunContext
from fed3r_app.training.model import SoftmaxModel
from strategies import Accumulator, Traffic, TrainedRound


class _Counted(NamedTuple):
    """Bytes so far, and the clients and samples in the statistics."""

    traffic: Traffic
    clients: int
    samples: int


class StatisticsCosts:
    """The costs of an exchange of statistics, added to those of the run.

    Parameters
    ----------
    context : RunContext
        The run, whose recorder adds up the costs.
    accumulator : Accumulator
        The clients and samples in it at the beginning were paid for before.
    traffic : Traffic
        The bytes that travel.
    head : str
        It fixes what the paper sends.
    """

    def __init__(
        self, context: RunContext, accumulator: Accumulator, traffic: Traffic, head: str
    ) -> None:
        self._recorder = context.recorder
        self._accumulator = accumulator
        self._traffic = traffic
        self._paper_bytes = (
            statistics_upload_bytes if HEADS[head].needs_A else class_means_upload_bytes
        )
        flops = context.forward_flops
        self._flops_per_sample = statistics_flops(1, *accumulator.space, flops)
        clients = len(accumulator.contributions)
        self._counted = _Counted(traffic.copy(), clients, accumulator.n)

    def count(self) -> None:
        """Add the costs since the last call; may be called within a round."""
        before, samples = self._counted, self._accumulator.num_examples
        self._counted = now = _Counted(
            self._traffic.copy(),
            len(self._accumulator.contributions),
            before.samples if samples is None else samples,
        )
        up, down = now.traffic.since(before.traffic)
        self._recorder.add_costs(
            up=up,
            down=down,
            paper_up=self._paper_bytes(
                *self._accumulator.space, now.clients - before.clients
            ),
            flops=self._flops_per_sample * (now.samples - before.samples),
        )

    def count_samples(self, samples: int) -> None:
        """Add the computing for samples whose number was not known before."""
        new = samples - self._counted.samples
        self._recorder.add_costs(flops=self._flops_per_sample * new)
        self._counted = self._counted._replace(samples=samples)


def add_training_costs(
    context: RunContext, model: SoftmaxModel, result: TrainedRound
) -> None:
    """Add the costs of a round of training."""
    config = context.config
    c = sum(value.numel() for value in model.trainable("lp").values())
    b = sum(value.numel() for value in model.trainable("feat").values())
    values = trained_values(config.finetune, b, c, config.optimizer == "scaffold")
    one_way = training_bytes(values, result.clients, rounds=1)
    n, epochs = result.num_samples, config.local_epochs
    flops = training_flops(config.finetune, n, epochs, context.forward_flops, c)
    context.recorder.add_costs(
        up=result.traffic.up,
        down=result.traffic.down,
        paper_up=one_way,
        paper_down=one_way,
        flops=flops,
    )
