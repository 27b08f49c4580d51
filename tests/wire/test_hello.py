"""Hellos and label spaces as records: what is said comes back, and nothing else."""

from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fed3r_app.core import FeatureMoments
from fed3r_app.wire import (
    Hello,
    RecordError,
    pack_hello,
    read_hello,
    read_labels,
    with_labels,
)


@pytest.mark.parametrize(
    "hello",
    [
        Hello("7", 10),
        Hello("clinic-7", 0, class_names=("cat", "día", "a, b")),
        Hello("clinic-7", 0, class_names=("cat",), num_test_images=3),
        Hello("clinic-7", 0, num_test_images=3),
    ],
)
def test_a_hello_comes_back_as_it_was_said(hello: Any) -> None:
    assert read_hello(pack_hello(hello)) == hello


def test_moments_come_back_too() -> None:
    moments = FeatureMoments.of(torch.arange(6.0).reshape(2, 3))
    read = read_hello(pack_hello(Hello("7", 10, moments))).moments
    assert read is not None
    assert (read.n, read.squared_norms) == (2, moments.squared_norms)
    assert torch.equal(read.total, moments.total)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        *(("client-id", value, "must be a name") for value in ("", 7)),
        ("num-partitions", -1, "must be >= 0"),
        *(("num-test-images", value, "must be >= 0") for value in (-1, 0.5)),
        *(("labels", value, "must be names") for value in ("cat", [1, 2], ["cat", ""])),
        ("labels", ["cat", "cat"], "must differ"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(
    key: Any, value: Any, sentence: str
) -> None:
    said = {"client-id": "7", "num-partitions": 0, key: value}
    with pytest.raises(RecordError, match=f"{key} {sentence}"):
        read_hello(RecordDict({"config": ConfigRecord(said)}))


def test_a_request_tells_the_label_space_beside_what_it_asks() -> None:
    asked = ConfigRecord({"dim": 3})
    told = with_labels(asked, ("owl", "cat"))
    assert read_labels(told) == ("owl", "cat")
    assert told["dim"] == 3
    assert read_labels(asked) is None
    assert read_labels(with_labels(asked, ())) is None
