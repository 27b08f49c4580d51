"""Classifiers travel unchanged."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.wire import count_bytes, pack_classifier, unpack_classifier


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_classifier_comes_back_as_it_was(draw, dtype):
    W = draw(6, 4, 2, 0)[0].to(dtype)
    present = torch.tensor([True, False, True, True])
    arrays = pack_classifier(W, present).to_numpy_ndarrays()
    weights, mask = unpack_classifier(arrays)
    assert torch.equal(weights, W) and weights.dtype == dtype
    assert torch.equal(mask, present)


def test_the_bytes_of_a_message_are_those_of_all_its_records(draw):
    arrays = ArrayRecord([draw(6, 4, 2, 0)[0].numpy()])
    config = ConfigRecord({"round": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    assert count_bytes(content) == arrays.count_bytes() + config.count_bytes()
    assert count_bytes(content) > 8 * 6 * 4
