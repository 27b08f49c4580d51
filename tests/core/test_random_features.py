"""Random features: the same on every machine, approximating the kernel; its width."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.core import FeatureMoments, RandomFeatures
from tests.harness.samples import Draw

EPS = torch.finfo(torch.float64).eps


def test_known_draws_of_a_seed() -> None:
    phi = RandomFeatures(3, 300, sigma=2.0, seed=7)
    drawn = [phi.omega[0, 0], phi.omega[2, 255], phi.omega[1, 256]]
    drawn += [phi.beta[0], phi.beta[299]]
    known = [0.26014175070240125, 0.1268848674619686, 0.5876158431526849]
    known += [4.528975913612181, 0.7394168031586927]
    assert np.allclose(drawn, known, rtol=0, atol=1e-12)
    values = phi(torch.tensor([[1.0, -2.0, 0.5]]))[0, [0, 255, 256, 299]]
    known = [0.05061943323196165, -0.00162303952612783]
    known += [-0.07338284030073272, 0.030516232622283167]
    assert np.allclose(values, known, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63, 2**64 - 1])
def test_a_seed_always_means_the_same_features_and_no_other_does(seed: int) -> None:
    one, other = RandomFeatures(5, 40, 2.0, seed), RandomFeatures(5, 40, 2.0, seed)
    assert torch.equal(one.omega, other.omega)
    assert torch.equal(one.beta, other.beta)
    another = RandomFeatures(5, 40, 2.0, seed + 1)
    assert not torch.isclose(one.omega, another.omega).any()
    assert not torch.isclose(one.beta, another.beta).any()


@pytest.mark.parametrize(("fewer", "more"), [(10, 300), (256, 257), (300, 700)])
def test_more_features_begin_with_the_fewer(fewer: Any, more: Any) -> None:
    few, many = RandomFeatures(6, fewer, 3.0, 1), RandomFeatures(6, more, 3.0, 1)
    assert torch.equal(many.omega[:, :fewer], few.omega)
    assert torch.equal(many.beta[:fewer], few.beta)
    Z = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 6)))
    # Only the factor sqrt(2/D) differs; the angles are small multiples of pi.
    torch.testing.assert_close(
        many(Z)[:, :fewer] * math.sqrt(more / fewer), few(Z), rtol=0, atol=1e-13
    )


def test_the_feature_map_is_its_formula() -> None:
    phi = RandomFeatures(4, 30, 1.5, 0)
    Z = np.random.default_rng(0).normal(size=(5, 4))
    expected = np.sqrt(2 / 30) * np.cos(Z @ phi.omega.numpy() + phi.beta.numpy())
    mapped = phi(torch.from_numpy(Z))
    assert mapped.dtype == torch.float64 and mapped.shape == (5, 30)
    assert np.allclose(mapped, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("sigma", [0.7, 3.0])
def test_inner_products_approximate_the_kernel(sigma: Any) -> None:
    D, n = 20_000, 15
    Z = torch.from_numpy(np.random.default_rng(2).normal(size=(n, 6)))
    mapped = RandomFeatures(6, D, sigma, seed=3)(Z)
    kernel = (-torch.cdist(Z, Z).square() / (2 * sigma**2)).exp()
    # D independent terms 2 cos cos / D, each within 2/D: by Hoeffding an error of t
    # has probability 2 exp(-D t^2 / 8); over the 120 pairs t = 0.1 leaves 3e-9.
    assert float((mapped @ mapped.T - kernel).abs().max()) < 0.1
    # The variance of a term is at most 3/2, so the typical error is sqrt(3 / 2D).
    assert float((mapped @ mapped.T - kernel).square().mean()) < 2 * 3 / (2 * D)


def test_omega_is_normal_and_beta_uniform() -> None:
    phi = RandomFeatures(50, 4000, sigma=4.0, seed=11)
    x = phi.omega.flatten().numpy() * 4.0
    # Five standard errors of the mean, variance, skewness and kurtosis of a normal.
    error = 5 / math.sqrt(len(x))
    assert abs(x.mean()) < error
    assert abs(x.var() - 1) < error * math.sqrt(2)
    assert abs((x**3).mean()) < error * math.sqrt(15)
    assert abs((x**4).mean() - 3) < error * math.sqrt(96)
    turns = phi.beta.numpy() / (2 * np.pi)
    assert 0 <= turns.min() and turns.max() <= 1
    assert abs(turns.mean() - 0.5) < 5 / math.sqrt(12 * len(turns))
    assert abs((turns**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / len(turns))


def test_columns_of_omega_are_uncorrelated() -> None:
    # The halves of a Box-Muller pair lie half a block apart; neither pair nor block
    # may repeat another.
    omega = RandomFeatures(2000, 520, sigma=1.0, seed=5).omega
    correlation = torch.corrcoef(omega.T).fill_diagonal_(0)
    # 135,000 pairs, each of standard error 1 / sqrt(2000): 6.5 of them leave 1e-5.
    assert float(correlation.abs().max()) < 6.5 / math.sqrt(2000)


def test_widths_and_dimensions_that_can_not_be_are_refused() -> None:
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"rf-sigma must be > 0 .* got {sigma}"):
            RandomFeatures(3, 10, sigma, 0)
    for d, D in ((3, 0), (3, -5), (0, 10)):
        with pytest.raises(ValueError, match=f"rf-dim must be >= 1, got {D}"):
            RandomFeatures(d, D, 1.0, 0)


@settings(max_examples=30)
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(0, 50), max_size=12))
def test_any_split_gives_the_pooled_moments(draw: Draw, seed: int, cuts: Any) -> None:
    Z, _ = draw("relu", 50, 7, 2, seed)
    pooled = FeatureMoments.of(Z)
    total = FeatureMoments.of(Z[:0])
    for part in Z.tensor_split(sorted(cuts)):
        total = total + FeatureMoments.of(part)
    assert total.n == 50
    # Sums of positive terms: 50 * 7 roundings at most.
    torch.testing.assert_close(total.total, pooled.total, rtol=350 * EPS, atol=0)
    assert total.squared_norms == pytest.approx(pooled.squared_norms, rel=350 * EPS)
    assert total.sigma() == pytest.approx(pooled.sigma(), rel=1e4 * EPS)


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("kind", ["normal", "relu", "integer"])
def test_sigma_is_three_times_the_root_mean_square_distance(
    draw: Draw, kind: str, offset: Any
) -> None:
    Z = draw(kind, 30, 6, 2, 0)[0] + offset
    pairs = [float((a - b).square().sum()) for a in Z for b in Z]
    # The difference of moments loses at most 1 + offset^2 / variance ~ 1e2 in eps.
    assert FeatureMoments.of(Z).sigma() == pytest.approx(
        3 * np.sqrt(np.mean(pairs)), rel=1e4 * EPS
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 6, 7, 100])
def test_equal_features_are_refused(value: Any, n: int) -> None:
    moments = FeatureMoments.of(torch.full((n, 3), value, dtype=torch.float64))
    with pytest.raises(
        ValueError, match=rf"needs features that differ, got {n} (equal|sample)"
    ):
        moments.sigma()


def test_moments_of_no_features_or_of_others_are_refused() -> None:
    with pytest.raises(ValueError, match="needs features, got none"):
        FeatureMoments.of(torch.zeros(0, 3)).sigma()
    with pytest.raises(ValueError, match="must agree on d; got 3 and 1"):
        FeatureMoments.of(torch.ones(2, 3)) + FeatureMoments.of(torch.ones(2, 1))
