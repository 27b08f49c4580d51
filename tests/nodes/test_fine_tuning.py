"""Fine-tuning on nodes that join late, leave or start anew."""

import pytest
import torch

LABELS = "cat,dog,elk,owl,yak"
LP = {"finetune": "lp", "lr": 0.01, "labels": LABELS, "max_retries": 0}


@pytest.fixture
def asked(federation):
    """Return how often each kind of question was asked in the last run."""

    def count():
        kinds = [kind for _, kind in federation.grid.log]
        return {kind: kinds.count(kind) for kind in kinds}

    return count


def test_who_comes_between_two_parts_is_not_in_the_fine_tuning(
    federation, clinics, model_of, summary_of, asked
):
    first = clinics[:3]
    whole = federation.run(first, run_name="whole", rounds=2, **LP)
    federation.run(first, rounds=1, **LP)
    directory = federation.run(clinics, rounds=2, resume=True, **LP)
    assert torch.equal(model_of(directory).W, model_of(whole).W)
    assert asked() == {"query.hello": 4, "train": 3}
    assert summary_of(directory)["clients"] == 3
    assert summary_of(directory)["status"] == "complete"


def test_a_client_that_is_gone_when_the_fine_tuning_goes_on_is_done_without(
    federation, clinics, summary_of, asked
):
    federation.run(clinics, rounds=1, **LP)
    directory = federation.run(clinics[1:], rounds=2, resume=True, **LP)
    assert asked() == {"query.hello": 3, "train": 3}
    assert summary_of(directory)["clients"] == 4
