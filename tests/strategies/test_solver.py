"""Which penalty each classifier of a run has."""

from typing import Any

import numpy as np
import pytest
import torch

from fed3r_app.core import HeadOptions, RidgeStatistics, select_lambda
from strategies import HeadSolver


def statistics(n: int) -> RidgeStatistics:
    rng = np.random.default_rng(n)
    y = torch.from_numpy(rng.integers(3, size=n))
    Z = torch.from_numpy(rng.normal(size=(n, 5))) + y[:, None]
    return RidgeStatistics.of(Z, y, 3)


def choose(solver: HeadSolver, n: int, last: bool, noise: float | None = None) -> float:
    solver.solve(statistics(n), last=last, noise_lambda=noise)
    assert solver.ridge_lambda is not None
    return solver.ridge_lambda


def test_lambda_is_chosen_anew_for_twice_the_samples() -> None:
    solver = HeadSolver()
    sizes = (20, 30, 39, 40, 79, 80)
    chosen = [choose(solver, n, last=False) for n in sizes]
    fresh = {n: select_lambda(statistics(n)) for n in sizes}
    assert chosen == [fresh[n] for n in (20, 20, 20, 40, 40, 80)]
    assert len({fresh[n] for n in sizes}) == len(sizes)


def test_the_last_classifier_has_a_lambda_of_its_own() -> None:
    solver = HeadSolver()
    choose(solver, 20, last=False)
    assert choose(solver, 21, last=True) == select_lambda(statistics(21))


@pytest.mark.parametrize("last", [False, True])
def test_a_given_lambda_is_that_of_all(last: Any) -> None:
    solver = HeadSolver(given=HeadOptions(0.01))
    assert {choose(solver, n, last=last) for n in (20, 50)} == {0.01}


@pytest.mark.parametrize("last", [False, True])
def test_noise_brings_its_own_lambda(last: Any) -> None:
    assert choose(HeadSolver(), 20, last, noise=7.0) == 7.0
    assert choose(HeadSolver(given=HeadOptions(0.5)), 20, last, noise=7.0) == 0.5
