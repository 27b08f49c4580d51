"""The first exchange, at the client: what it says of itself, as records.

No torch here: a real node greets in a process that has nothing else to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

if TYPE_CHECKING:
    from fed3r_app.core import FeatureMoments

LABELS = "labels"


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
    class_names : tuple of str
        Its classes, where its images are its own; where the run config names all, just
        those that are not among them.
    num_test_images : int
        How many test images it holds besides, for evaluations.
    """

    client_id: str
    num_partitions: int
    moments: FeatureMoments | None = None
    class_names: tuple[str, ...] = ()
    num_test_images: int = 0


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    config = ConfigRecord(
        {"client-id": hello.client_id, "num-partitions": hello.num_partitions}
    )
    content = RecordDict({"config": config})
    if hello.class_names:
        config[LABELS] = list(hello.class_names)
    if hello.num_test_images:
        config["num-test-images"] = hello.num_test_images
    if hello.moments is not None:
        config["num-examples"] = hello.moments.n
        config["squared-norms"] = hello.moments.squared_norms
        content["arrays"] = ArrayRecord({"sum": Array(hello.moments.total.numpy())})
    return content
