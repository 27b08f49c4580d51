"""Classifiers travel unchanged."""

from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.core import Classifier
from fed3r_app.wire import count_bytes, pack_classifier, unpack_classifier
from tests.harness.samples import Draw


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_classifier_comes_back_as_it_was(
    draw: Draw, dtype: Any, with_bias: Any
) -> None:
    W = draw(6, 4, 2, 0)[0].to(dtype)
    present = torch.tensor([True, False, True, True])
    bias = W[0] if with_bias else None
    sent = pack_classifier(Classifier(W, present, bias)).to_numpy_ndarrays()
    classifier = unpack_classifier(sent)
    assert torch.equal(classifier.W, W) and classifier.W.dtype == dtype
    assert torch.equal(classifier.present, present)
    torch.testing.assert_close(classifier.bias, bias, rtol=0, atol=0)


def test_the_bytes_of_a_message_are_those_of_all_its_records(draw: Draw) -> None:
    arrays = ArrayRecord([draw(6, 4, 2, 0)[0].numpy()])
    config = ConfigRecord({"round": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    assert count_bytes(content) == arrays.count_bytes() + config.count_bytes()
    assert count_bytes(content) > 8 * 6 * 4
