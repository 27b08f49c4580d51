"""The first exchange: who a node is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.core import FeatureMoments
from fed3r_app.wire.layout import RecordError


@dataclass(frozen=True)
class Hello:
    """What a client says of itself.

    Parameters
    ----------
    client_id : str
        Names the client across runs.
    num_partitions : int
        How many clients it believes there are; 0 where it can't know.
    moments : FeatureMoments or None
        Sums of its features, where asked for.
    """

    client_id: str
    num_partitions: int
    moments: FeatureMoments | None = None


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    config = ConfigRecord(
        {"client-id": hello.client_id, "num-partitions": hello.num_partitions}
    )
    content = RecordDict({"config": config})
    if hello.moments is not None:
        config["num-examples"] = hello.moments.n
        config["squared-norms"] = hello.moments.squared_norms
        content["arrays"] = ArrayRecord({"sum": Array(hello.moments.total.numpy())})
    return content


def read_hello(content: RecordDict) -> Hello:
    """Return the hello in a reply's records, or raise RecordError."""
    try:
        config = content.config_records["config"]
        client_id, num_partitions = config["client-id"], config["num-partitions"]
        moments = None
        if "arrays" in content.array_records:
            total = torch.from_numpy(content.array_records["arrays"]["sum"].numpy())
            n, squared_norms = config["num-examples"], config["squared-norms"]
            moments = FeatureMoments(int(n), total, float(squared_norms))  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"A hello can't be read: {error!r}.") from None
    if (
        not isinstance(client_id, str)
        or not client_id
        or not isinstance(num_partitions, int)
    ):
        raise RecordError(
            "client-id must be a name and num-partitions a whole number, got "
            f"{client_id!r} and {num_partitions!r}."
        )
    return Hello(client_id, num_partitions, moments)
