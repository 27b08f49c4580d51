"""Config and metric records of the training messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fed3r_app.core import FeatureMap, LeaveOneOut, Metrics
from fed3r_app.wire import RecordError
from fed3r_app.wire.messages import pack_feature_map, read_feature_map
from fed3r_app.wire.validation import read_array, read_number, read_whole, shown

# Records that travel beside the arrays that train.
RUNNING, FIXED, CONTROL = "running-statistics", "classifier", "control"
_MOST_TEMPERATURES = 1000
_TEMPERATURES, _LOSSES = "temperatures", "losses"
_LEVERAGE, _SCALE = "leverage", "scale"
_TOTAL, _CORRECT, _LEFT_OUT = "num-examples", "correct", "correct-left-out"
# Metrics of a training reply: how the model that came fits the client's images.
RECEIVED_LOSS, RECEIVED_CORRECT = "received-loss", "received-correct"


@dataclass(frozen=True)
class TrainRequest:
    """The numbers of a round that don't stand in the run config."""

    # As chosen by the server where the run config says ``auto``.
    lr: float
    temperature: float
    feature_map: FeatureMap  # from backbone features to those that ``lp`` trains on
    fixed_digest: str  # names the classifier that ``feat`` keeps fixed; "" for none
    bias: bool  # whether the classifier has one
    report_fit: bool = False  # whether to say how the received model fits the images
    round: int = 0  # filled in by Flower's strategies

    def pack(self) -> ConfigRecord:
        """Return the config record."""
        record = pack_feature_map(self.feature_map)
        record["lr"], record["temperature"] = self.lr, self.temperature
        record["bias"], record["report-fit"] = self.bias, self.report_fit
        if self.fixed_digest:  # Flower can't count the bytes of an empty string
            record["fixed-digest"] = self.fixed_digest
        return record

    @classmethod
    def read(cls, config: ConfigRecord) -> TrainRequest:
        """Return the request in a config record."""
        try:
            return cls(
                lr=read_number(config, "lr"),
                temperature=read_number(config, "temperature"),
                feature_map=read_feature_map(config),
                fixed_digest=str(config.get("fixed-digest", "")),
                bias=bool(config["bias"]),
                report_fit=bool(config.get("report-fit", False)),
                round=read_whole(config, "server-round"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"A training request can't be read: {error}.") from None


def pack_arrays(arrays: dict[str, Tensor]) -> ArrayRecord:
    """Return the record of named tensors."""
    return ArrayRecord(
        {name: Array(value.detach().cpu().numpy()) for name, value in arrays.items()}
    )


def unpack_arrays(record: ArrayRecord) -> dict[str, Tensor]:
    """Return the named tensors of a record."""
    return {name: torch.from_numpy(read_array(record, name)) for name in record}


def pack_temperatures(
    feature_map: FeatureMap,
    temperatures: Sequence[float],
    leave_one_out: LeaveOneOut | None = None,
) -> ConfigRecord:
    """Return the request for the losses at some temperatures.

    ``leave_one_out`` has each image left out of a classifier that was made with it.
    """
    record = pack_feature_map(feature_map)
    record[_TEMPERATURES] = list(temperatures)
    if leave_one_out:
        record[_LEVERAGE] = leave_one_out.leverage
        record[_SCALE] = leave_one_out.scale.tolist()
    return record


def read_leave_one_out(config: ConfigRecord) -> LeaveOneOut | None:
    """Return how images are left out, where such a request says so."""
    leverage, scale = config.get(_LEVERAGE), config.get(_SCALE)
    if leverage is None or not isinstance(scale, list):
        return None
    numbers = [read_number({_SCALE: value}, _SCALE) for value in scale]
    scales = torch.tensor(numbers, dtype=torch.float64)
    return LeaveOneOut(read_number(config, _LEVERAGE), scales)


def read_temperatures(config: ConfigRecord) -> list[float]:
    """Return the temperatures of such a request."""
    values = config.get(_TEMPERATURES)
    if not isinstance(values, list) or not 1 <= len(values) <= _MOST_TEMPERATURES:
        raise RecordError(
            f"{_TEMPERATURES} must be 1 to {_MOST_TEMPERATURES} numbers, got "
            f"{shown(values)}."
        )
    return [read_number({_TEMPERATURES: value}, _TEMPERATURES) for value in values]


@dataclass(frozen=True, eq=False)
class Fit:
    """How a classifier fits a client's training images."""

    losses: Tensor  # (t,) sums of the cross-entropies at each temperature
    metrics: Metrics
    left_out: Metrics  # with each image left out of the classifier, where that is known


def pack_fit(fit: Fit) -> RecordDict:
    """Return the reply to such a request."""
    counts = {_TOTAL: fit.metrics.total, _CORRECT: fit.metrics.correct}
    counts[_LEFT_OUT] = fit.left_out.correct
    metrics = MetricRecord({_LOSSES: fit.losses.tolist(), **counts})
    return RecordDict({"metrics": metrics})


def read_fit(content: RecordDict, expected: int) -> Fit:
    """Return the fit in a reply, with ``expected`` losses."""
    record = content.metric_records.get("metrics", MetricRecord())
    values = record.get(_LOSSES)
    if not isinstance(values, list) or len(values) != expected:
        raise RecordError(f"{_LOSSES} must be {expected} numbers, got {shown(values)}.")
    losses = [read_number({_LOSSES: value}, _LOSSES) for value in values]
    fits = (_read_correct(record, key) for key in (_CORRECT, _LEFT_OUT))
    return Fit(torch.tensor(losses, dtype=torch.float64), *fits)


def read_evaluation(content: RecordDict) -> Metrics:
    """Return what is right in a reply to a request for an evaluation."""
    record = content.metric_records.get("metrics", MetricRecord())
    read_number(record, "loss")
    return _read_correct(record, _CORRECT)


def _read_correct(record: MetricRecord, key: str) -> Metrics:
    total = read_whole(record, _TOTAL)
    return Metrics(read_whole(record, key, total), total)
