"""Fine-tuning on nodes that join late, leave or start anew."""

from typing import Any

import pytest
import torch

from tests.harness.nodes import AtFirst, Federation

LABELS = "cat,dog,elk,owl,yak"
LP: dict[str, Any] = {"finetune": "lp", "lr": 0.01, "labels": LABELS, "max_retries": 0}


@pytest.fixture
def asked(federation: Federation) -> Any:
    """Return how often each kind of request was asked in the last run."""

    def count() -> Any:
        kinds = [kind for _, kind in federation.grid.log]
        return {kind: kinds.count(kind) for kind in kinds}

    return count


def test_who_comes_between_two_parts_is_not_in_the_fine_tuning(
    federation: Federation, clinics: tuple[str, ...], asked: Any
) -> None:
    first = clinics[:3]
    whole = federation.run(first, run_name="whole", rounds=2, **LP)
    federation.run(first, rounds=1, **LP)
    outcome = federation.run(clinics, rounds=2, resume=True, **LP)
    assert torch.equal(outcome.model.W, whole.model.W)
    assert asked() == {"query.hello": 4, "train": 3}
    assert outcome.summary["clients"] == 3
    assert outcome.summary["status"] == "complete"


def test_a_client_that_is_gone_when_the_fine_tuning_goes_on_is_done_without(
    federation: Federation, clinics: tuple[str, ...], asked: Any
) -> None:
    federation.run(clinics, rounds=1, **LP)
    outcome = federation.run(clinics[1:], rounds=2, resume=True, **LP)
    assert asked() == {"query.hello": 3, "train": 3}
    assert outcome.summary["clients"] == 4


ONE_BY_ONE: dict[str, Any] = LP | {"clients_per_round": 1, "rounds": 12}


def test_a_node_that_is_started_anew_trains_on_under_its_new_id(
    federation: Federation, at_first: AtFirst, clinics: tuple[str, ...]
) -> None:
    whole = federation.run(clinics, run_name="whole", **ONE_BY_ONE)
    grid = federation.make_grid(clinics, **ONE_BY_ONE)

    def restart(node: Any) -> None:
        for number, other in enumerate(list(grid.get_node_ids())):
            if other != node:
                federation.restart(other, 900 + number)

    grid.before = at_first("train", restart)
    outcome = federation.run(grid=grid)
    assert torch.equal(outcome.model.W, whole.model.W)
    trained = {node for node, kind in grid.log if kind == "train"}
    assert sum(node >= 900 for node in trained) == 3


def test_who_joins_a_fine_tuning_is_not_asked_to_train(
    federation: Federation, at_first: AtFirst, clinics: tuple[str, ...]
) -> None:
    first = clinics[:3]
    whole = federation.run(first, run_name="whole", **ONE_BY_ONE)
    grid = federation.make_grid(first, **ONE_BY_ONE)
    late = federation.node_config(clinics[3])
    grid.before = at_first("train", lambda _: federation.connect(999, late))
    outcome = federation.run(grid=grid)
    assert torch.equal(outcome.model.W, whole.model.W)
    assert [kind for node, kind in grid.log if node == 999] == ["query.hello"]
    assert outcome.summary["clients"] == 3
