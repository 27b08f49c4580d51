"""Fine-tuning on nodes that join late, leave or start anew."""

import pytest
import torch

LABELS = "cat,dog,elk,owl,yak"
LP = {"finetune": "lp", "lr": 0.01, "labels": LABELS, "max_retries": 0}


@pytest.fixture
def asked(federation):
    """Return how often each kind of request was asked in the last run."""

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


ONE_BY_ONE = LP | {"clients_per_round": 1, "rounds": 12}


def at_first_training(action):
    """Make what calls `action` with the node first asked to train."""
    done = []

    def before(node, kind):
        if kind == "train" and not done:
            done.append(node)
            action(node)

    return before


def test_a_node_that_is_started_anew_trains_on_under_its_new_id(
    federation, clinics, model_of
):
    whole = federation.run(clinics, run_name="whole", **ONE_BY_ONE)
    grid = federation.make_grid(clinics, **ONE_BY_ONE)

    def restart(node):
        for number, other in enumerate(list(grid.get_node_ids())):
            if other != node:
                config = grid.node_config(other)
                grid.disconnect(other)
                grid.connect(900 + number, config)

    grid.before = at_first_training(restart)
    directory = federation.run(grid=grid)
    assert torch.equal(model_of(directory).W, model_of(whole).W)
    trained = {node for node, kind in grid.log if kind == "train"}
    assert sum(node >= 900 for node in trained) == 3


def test_who_joins_a_fine_tuning_is_not_asked_to_train(
    federation, clinics, model_of, summary_of
):
    first = clinics[:3]
    whole = federation.run(first, run_name="whole", **ONE_BY_ONE)
    grid = federation.make_grid(first, **ONE_BY_ONE)
    late = federation.node_config(clinics[3])
    grid.before = at_first_training(lambda _: grid.connect(999, late))
    directory = federation.run(grid=grid)
    assert torch.equal(model_of(directory).W, model_of(whole).W)
    assert [kind for node, kind in grid.log if node == 999] == ["query.hello"]
    assert summary_of(directory)["clients"] == 3
