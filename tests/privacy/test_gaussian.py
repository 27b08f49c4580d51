"""The noise is what the budget asks for, and comes from where nobody can foresee it."""

import math
import os
from typing import Any
from unittest.mock import Mock, call

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy.stats import kstest, norm

from fed3r_app.core import FeatureMap
from fed3r_app.privacy.gaussian import (
    PrivacyBudget,
    check_feature_map,
    release_sensitivity,
    secure_normals,
)

BUDGETS = [(0.1, 1e-6), (1.0, 1e-5), (2.0, 1e-5), (4.0, 1e-5), (8.0, 1e-5), (1.0, 1e-9)]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_noise_spends_the_budget_and_no_more(epsilon: Any, delta: Any) -> None:
    def spent(multiplier: float) -> Any:
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        return accountant.get_epsilon(delta)

    multiplier = PrivacyBudget(epsilon, delta).noise_multiplier()
    assert spent(multiplier) == pytest.approx(epsilon, rel=2e-3)
    assert spent(0.98 * multiplier) > epsilon


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_noise_is_that_of_the_exact_formula(epsilon: Any, delta: Any) -> None:
    # Balle and Wang: delta = P(1/2s - eps s) - e^eps P(-1/2s - eps s), s the deviation.
    s = PrivacyBudget(epsilon, delta).noise_multiplier()
    exact = norm.cdf(0.5 / s - epsilon * s)
    exact -= math.exp(epsilon) * norm.cdf(-0.5 / s - epsilon * s)
    assert exact == pytest.approx(delta, rel=1e-4)


def test_the_deviation_is_a_multiple_of_the_sensitivity() -> None:
    budget = PrivacyBudget(1.0, 1e-5)
    expected = budget.noise_multiplier() * release_sensitivity(1.0, 64, 10)
    assert budget.central_sigma(64, 10) == pytest.approx(expected, rel=1e-12)
    assert budget.central_sigma(64, 10) == pytest.approx(3.7306 * 3**0.5, rel=1e-4)


@pytest.mark.parametrize("size", [0, 1, 7, 2**20 + 3])
def test_as_many_numbers_come_as_asked_for(size: Any) -> None:
    drawn = secure_normals(size)
    assert drawn.shape == (size,) and drawn.dtype == torch.float64
    assert torch.isfinite(drawn).all()


def test_the_numbers_are_standard_normal_and_independent() -> None:
    drawn = secure_normals(400_000).numpy()
    assert kstest(drawn, "norm").pvalue > 1e-6
    halves = drawn.reshape(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < 6 / math.sqrt(halves.shape[1])
    assert abs(np.corrcoef(halves**2)[0, 1]) < 6 / math.sqrt(halves.shape[1])


def test_the_numbers_come_from_the_operating_system_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urandom = Mock(wraps=os.urandom)
    monkeypatch.setattr(os, "urandom", urandom)
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        draws.append(secure_normals(1000))
    assert not torch.equal(*draws)
    assert urandom.call_args_list == [call(8000), call(8000)]


def test_a_client_refuses_a_server_that_would_not_normalise() -> None:
    check_feature_map(0.0, FeatureMap(4))
    check_feature_map(1.0, FeatureMap(4, norm=1.0))
    for epsilon, norm_sent in ((1.0, 0.0), (1.0, 2.0), (0.0, 1.0)):
        with pytest.raises(ValueError, match="Features must be brought to norm"):
            check_feature_map(epsilon, FeatureMap(4, norm=norm_sent))
