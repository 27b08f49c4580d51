"""Config and metric records of the training messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fed3r_app.core import FeatureMap
from fed3r_app.wire import RecordError
from fed3r_app.wire.messages import pack_feature_map, read_feature_map

# Records that travel beside the arrays that train.
RUNNING, FIXED, CONTROL = "running-statistics", "classifier", "control"
_TEMPERATURES, _LOSSES = "temperatures", "losses"


@dataclass(frozen=True)
class TrainRequest:
    """The numbers of a round that don't stand in the run config."""

    # As chosen by the server where the run config says ``auto``.
    lr: float
    temperature: float
    feature_map: FeatureMap  # from backbone features to those that ``lp`` trains on
    fixed_digest: str  # names the classifier that ``feat`` keeps fixed; "" for none
    bias: bool  # whether the classifier has one
    round: int = 0  # filled in by Flower's strategies

    def pack(self) -> ConfigRecord:
        """Return the config record."""
        record = pack_feature_map(self.feature_map)
        record["lr"], record["temperature"] = self.lr, self.temperature
        record["bias"] = self.bias
        if self.fixed_digest:  # Flower can't count the bytes of an empty string
            record["fixed-digest"] = self.fixed_digest
        return record

    @classmethod
    def read(cls, config: ConfigRecord) -> TrainRequest:
        """Return the request in a config record."""
        try:
            return cls(
                lr=float(config["lr"]),  # type: ignore[arg-type]
                temperature=float(config["temperature"]),  # type: ignore[arg-type]
                feature_map=read_feature_map(config),
                fixed_digest=str(config.get("fixed-digest", "")),
                bias=bool(config["bias"]),
                round=int(config["server-round"]),  # type: ignore[arg-type]
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
    # Copied: arrays that arrive may not be written to, tensors may.
    return {name: torch.from_numpy(a.numpy().copy()) for name, a in record.items()}


def pack_temperatures(
    feature_map: FeatureMap, temperatures: Sequence[float]
) -> ConfigRecord:
    """Return the request for the losses at some temperatures."""
    record = pack_feature_map(feature_map)
    record[_TEMPERATURES] = list(temperatures)
    return record


def read_temperatures(config: ConfigRecord) -> list[float]:
    """Return the temperatures of such a request."""
    values = config.get(_TEMPERATURES)
    if not isinstance(values, list) or not values:
        raise RecordError(f"{_TEMPERATURES} must be a list of numbers, got {values!r}.")
    return [float(value) for value in values]


def pack_losses(losses: Sequence[float]) -> RecordDict:
    """Return the reply: the sum of the losses at each temperature."""
    return RecordDict({"metrics": MetricRecord({_LOSSES: list(losses)})})


def read_losses(content: RecordDict, expected: int) -> Tensor:
    """Return the losses of a reply, (expected,)."""
    values = content.metric_records.get("metrics", MetricRecord()).get(_LOSSES)
    if not isinstance(values, list) or len(values) != expected:
        raise RecordError(f"{_LOSSES} must be {expected} numbers, got {values!r}.")
    losses = torch.tensor(values, dtype=torch.float64)
    if not (losses.isfinite() & (losses >= 0)).all():
        raise RecordError(f"{_LOSSES} must be finite and >= 0, got {values!r}.")
    return losses
