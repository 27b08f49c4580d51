"""Hellos and label spaces as records: what is said comes back, and nothing else."""

import math
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
        Hello("clinic-7", 0, class_names=("cat", "नमस्\u200dते"), num_samples=2),
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
        ("client-id", "9" * 5000, "must be a name of 1 to 200 characters"),
        ("client-id", "a\x1b[2Jb", "must be without control characters"),
        ("client-id", "\u202egpj.a", "must be without control characters"),
        *(("num-partitions", value, "must be a whole number") for value in (-1, 1e99)),
        ("num-partitions", 2**60, "must be a whole number from 0 to 1000000"),
        *(
            (key, value, "must be a whole number from 0 to")
            for key in ("num-test-images", "num-samples")
            for value in (-1, 0.5, True, 10**13, 1 << 9000)
        ),
        *(("labels", value, "must be") for value in ("cat", [1, 2], ["cat", ""])),
        ("labels", ["cat", "cat"], "must differ"),
        ("labels", ["a\nb"], "must be without control characters"),
        ("labels", [str(i) for i in range(30_001)], "must be 30000 names at most"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(
    key: Any, value: Any, sentence: str
) -> None:
    said = {"client-id": "7", "num-partitions": 0, key: value}
    with pytest.raises(RecordError, match=f"{key} {sentence}"):
        read_hello(RecordDict({"config": ConfigRecord(said)}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"squared-norms": 1e300}, None),  # possible, if not likely
        ({"squared-norms": math.inf}, "squared-norms must be a finite number"),
        ({"squared-norms": 1.0}, "sum must be that of 2 features"),
        ({"num-examples": 0}, "sum must be that of 0 features"),
        ({"num-samples": 1}, "num-examples must be <= num-samples = 1, got 2"),
        ({"labels": ["a", "b", "c"], "num-samples": 2}, "the classes of 2 images"),
    ],
)
def test_moments_and_classes_must_go_with_the_number_of_images(
    change: Any, sentence: str | None
) -> None:
    moments = FeatureMoments.of(torch.arange(6.0).reshape(2, 3))
    content = pack_hello(Hello("7", 10, moments))
    content.config_records["config"].update(change)
    if sentence is None:
        assert read_hello(content)
        return
    with pytest.raises(RecordError, match=sentence):
        read_hello(content)


def test_moments_of_other_features_or_none_are_refused() -> None:
    moments = FeatureMoments.of(torch.arange(6.0).reshape(2, 3))
    content = pack_hello(Hello("7", 10, moments))
    assert read_hello(content, 3)
    with pytest.raises(RecordError, match=r"sum must be float64 of shape \(4,\)"):
        read_hello(content, 4)
    moments.total[0] = math.nan
    with pytest.raises(RecordError, match="sum must be that of 2 features"):
        read_hello(pack_hello(Hello("7", 10, moments)))


def test_a_request_tells_the_label_space_beside_what_it_asks() -> None:
    asked = ConfigRecord({"dim": 3})
    told = with_labels(asked, ("owl", "cat"))
    assert read_labels(told) == ("owl", "cat")
    assert told["dim"] == 3
    assert read_labels(asked) is None
    assert read_labels(with_labels(asked, ())) is None
