"""What is appended to features, or put in their place."""

from typing import Any

import pytest
import torch

from fed3r_app.core import FeatureMap, RandomFeatures
from tests.harness.samples import Draw


@pytest.mark.parametrize("rf_dim", [0, 9])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_number_of_features_is_the_one_announced(
    draw: Draw, rf_dim: Any, intercept: Any, n: int
) -> None:
    feature_map = FeatureMap(4, rf_dim=rf_dim, intercept=intercept)
    mapped = feature_map(draw("normal", n, 4, 2, 0)[0].float())
    assert mapped.shape == (n, feature_map.dim)
    assert feature_map.dim == (rf_dim or 4) + intercept
    assert mapped.dtype == torch.float64


@pytest.mark.parametrize("rf_dim", [0, 9])
def test_the_intercept_is_a_last_column_of_ones(draw: Draw, rf_dim: Any) -> None:
    Z, _ = draw("normal", 5, 4, 2, 0)
    mapped = FeatureMap(4, rf_dim=rf_dim, intercept=True)(Z)
    assert torch.equal(mapped[:, :-1], FeatureMap(4, rf_dim=rf_dim)(Z))
    assert torch.equal(mapped[:, -1], torch.ones(5, dtype=torch.float64))
    assert torch.equal(FeatureMap(4)(Z), Z)  # as they are where nothing is wanted


def test_random_features_take_the_place_of_the_features(draw: Draw) -> None:
    Z, _ = draw("normal", 5, 4, 2, 0)
    for seed in (0, 1, 0):  # maps of different seeds take turns
        mapped = FeatureMap(4, rf_dim=9, rf_sigma=2.0, rf_seed=seed)(Z)
        assert torch.equal(mapped, RandomFeatures(4, 9, 2.0, seed)(Z))


@pytest.mark.parametrize("rf_dim", [0, 9])
def test_features_of_another_backbone_are_refused(rf_dim: Any) -> None:
    with pytest.raises(ValueError, match="must have d = 4 columns, got 5"):
        FeatureMap(4, rf_dim=rf_dim)(torch.zeros(2, 5))
