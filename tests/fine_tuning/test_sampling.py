"""Who trains in a round: seeded, distinct, and in no order that shows."""

import random
from typing import Any

import pytest

from tests.harness.runs import AppRuns, assert_same_model

LP: dict[str, Any] = {"finetune": "lp", "method": "none", "partition": "iid"}


def test_a_round_has_so_many_distinct_clients(run: AppRuns) -> None:
    sampler = run(10, clients_per_round=4, rounds=6, **LP).sampler()
    assert list(sampler) == [1, 2, 3, 4, 5, 6]
    for clients in sampler.values():
        assert len(clients) == len(set(clients)) == 4
    assert len({tuple(clients) for clients in sampler.values()}) > 1
    assert len(set().union(*sampler.values())) > 4


def test_zero_and_more_than_there_are_mean_all(run: AppRuns) -> None:
    for name, kappa in (("zero", 0), ("many", 99)):
        outcome = run(3, clients_per_round=kappa, rounds=2, run_name=name, **LP)
        assert outcome.sampler() == {1: [0, 1, 2], 2: [0, 1, 2]}


def test_a_seed_means_the_same_cohorts_whatever_pythons_own_random_numbers(
    run: AppRuns,
) -> None:
    samplers = []
    for pythons, seed in ((1, 5), (2, 5), (3, 6)):
        random.seed(pythons)
        settings = LP | {"rounds": 6, "run_name": f"{pythons}", "seed": seed}
        samplers.append(run(10, clients_per_round=3, **settings).sampler())
    assert samplers[0] == samplers[1] != samplers[2]


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "scaffold"])
@pytest.mark.parametrize("method", ["fed3r", "none"])
def test_a_run_again_gives_the_same_bits_in_whatever_order_replies_come(
    run: AppRuns, optimizer: Any, method: Any
) -> None:
    settings = {"method": method, "optimizer": optimizer, "clients_per_round": 5}
    settings |= {"finetune": "lp", "rounds": 6}
    models = [
        run(10, shuffle=seed, run_name=f"{seed}", **settings).model
        for seed in (None, 1, 2)
    ]
    if method == "none":
        assert_same_model(models[0], models[1])
        assert_same_model(models[0], models[2])
    else:
        # The sums of the closed form are float64: the order shows in their last bits.
        for model in models[1:]:
            assert float((model.W - models[0].W).abs().max()) <= 1e-6
