"""Integers instead of floats: the same bits, whatever the order."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fed3r_app.core import FeatureMap, RidgeStatistics, solve_ridge
from fed3r_app.privacy.secagg import FixedPointEncoding, IntegerStatistics
from tests.harness.samples import assert_same

C = 4


def draw(seed: int, n: int, d: int, largest: float = 6.0) -> Any:
    rng = np.random.default_rng(seed)
    Z = torch.from_numpy(rng.uniform(-largest, largest, size=(n, d)))
    return Z, torch.from_numpy(rng.integers(C, size=n))


def grid(d: int, largest: float = 6.0, samples: int = 10_000, **options: Any) -> Any:
    return FixedPointEncoding(FeatureMap(d, **options), largest, samples)


@pytest.mark.parametrize(
    ("largest", "samples", "bits"),
    # The last but two: 2 * 1 * 2^52 is 2^53, one too many; 1 * 2^52 would do.
    [(6, 1_000_000, 13), (1, 1_000_000, 16), (1, 2**13, 19), (1, 2**13 - 1, 20)],
)
def test_the_grid_is_the_finest_that_can_not_overflow(
    largest: Any, samples: Any, bits: Any
) -> None:
    assert grid(3, largest, samples).bits == bits
    assert samples * largest**2 * 4**bits < 2**53
    assert bits == 20 or samples * largest**2 * 4 ** (bits + 1) >= 2**53


def test_a_bound_that_leaves_no_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be < 2\^53, got 1000000 and 1e\+06"):
        grid(3, 1e6, 10**6)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=3))
def test_integer_sums_are_the_plain_sums_bit_for_bit(seed: int, cuts: Any) -> None:
    Z, y = draw(seed, 60, 7)
    places = grid(7)
    pooled = RidgeStatistics.of(places.round(Z), y, C)
    parts = torch.arange(60).tensor_split(sorted(cuts))
    vectors = [IntegerStatistics.of([(Z[p], y[p])], C, places).vector() for p in parts]
    total = np.stack(vectors).sum(axis=0)
    stats = IntegerStatistics.from_vector(total, 7, C).statistics(places)
    assert_same(stats, pooled)
    plain = sum(
        (RidgeStatistics.of(places.round(Z[p]), y[p], C) for p in reversed(parts)),
        start=RidgeStatistics.zeros(7, C),
    )
    assert torch.equal(solve_ridge(plain, 0.1), solve_ridge(stats, 0.1))


def test_sums_at_the_limit_are_still_exact() -> None:
    places = grid(2, 6.0, 3640)
    assert places.bits == 18
    Z = torch.full((3640, 2), -6.0)
    y = torch.zeros(3640, dtype=torch.int64)
    stats = IntegerStatistics.of([(Z, y)], C, places).statistics(places)
    assert float(stats.A[0, 1]) == 36 * 3640
    assert float(stats.b[1, 0]) == -6 * 3640


def test_rounding_is_to_the_nearest_or_towards_zero() -> None:
    places = grid(1, 6.0, 1_000_000)
    unit = 2.0**-13
    Z = torch.tensor([[0.7 * unit], [-0.7 * unit], [6.0]])
    assert (places.round(Z) / unit).flatten().tolist() == [1, -1, 6 * 2**13]
    private = grid(1, 6.0, 1_000_000, norm=6.0)
    assert private.integers(Z).flatten().tolist() == [0, 0, 6 * 2**13]


def test_features_of_a_fixed_norm_never_pass_it_on_the_grid() -> None:
    feature_map = FeatureMap(9, rf_dim=20, rf_sigma=2.0, norm=1.0)
    places = FixedPointEncoding.choose(feature_map, None, None, 10**6)
    assert places.max_feature == 1.0
    rounded = places.round(feature_map(draw(3, 50, 9)[0]))
    assert float(rounded.norm(dim=1).max()) <= 1.0


def test_scaling_can_be_undone() -> None:
    feature_map = FeatureMap(5, rf_dim=30, rf_sigma=2.0, intercept=True)
    places = FixedPointEncoding.choose(feature_map, None, None, 1000)
    Z, y = draw(1, 250, 5)
    exact = IntegerStatistics.of([(feature_map(Z), y)], C, places).statistics(places)
    back = places.unscaled(places.scaled(exact))
    assert_same(back, exact)


@pytest.mark.parametrize("value", [6.001, -7.0, math.inf, math.nan])
def test_a_feature_beyond_the_largest_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="secagg-max-feature = 6, got one beyond"):
        grid(1).integers(torch.tensor([[value]]))


def test_a_bound_off_the_grid_is_never_passed_by_rounding() -> None:
    places = grid(1, 0.3, 2**30)
    units = places.integers(torch.tensor([[0.3], [-0.3]], dtype=torch.float64))
    assert float(units.abs().max()) <= 0.3 * 2**places.bits


def test_a_client_with_more_samples_than_all_may_have_is_refused() -> None:
    with pytest.raises(ValueError, match="number of this client's samples, got 10"):
        IntegerStatistics.of([draw(0, 11, 2)], C, grid(2, samples=10))


def test_cosines_travel_and_the_server_scales_them() -> None:
    D = 30
    feature_map = FeatureMap(5, rf_dim=D, rf_sigma=2.0, intercept=True)
    places = FixedPointEncoding(feature_map, 1.0, 1000)
    Z, y = draw(1, 40, 5)
    mapped = feature_map(Z)
    integers = IntegerStatistics.of([(mapped, y)], C, places)
    scaled = places.scaled(integers.statistics(places))
    plain = RidgeStatistics.of(mapped, y, C)
    unit = 2.0**-places.bits
    assert float((scaled.A - plain.A).abs().max()) <= 40 * 2 * unit
    assert float((scaled.b - plain.b).abs().max()) <= 40 * unit
    assert float(scaled.A[-1, -1]) == 40


def test_counts_that_do_not_fit_n_tell_a_sum_that_was_not_unmasked() -> None:
    vector = IntegerStatistics.of([draw(0, 5, 2)], C, grid(2)).vector()
    vector[-1] += np.uint64(1)
    with pytest.raises(ValueError, match="counts must add up to n = 6, got 5"):
        IntegerStatistics.from_vector(vector, 2, C)
    vector[:] = 0
    vector[-1 - C : -1] = 2**62  # whose sum is 0 modulo 2^64
    with pytest.raises(ValueError, match=f"add up to n = 0, got {2**64}"):
        IntegerStatistics.from_vector(vector, 2, C)


def test_a_vector_takes_eight_bytes_a_value() -> None:
    vector = IntegerStatistics.of([draw(0, 5, 6)], C, grid(6)).vector()
    assert vector.nbytes == 8 * (6 * 7 // 2 + 6 * C + C + 1)


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [(-2, -1, "counts"), (0, 2**62, "A"), (1, -(2**63), "A"), (5, 2**60, "b")],
)
def test_sums_that_no_features_on_the_grid_have_are_refused(
    place: Any, value: Any, name: str
) -> None:
    places = grid(2)
    vector = IntegerStatistics.of([draw(0, 5, 2)], C, places).vector()
    IntegerStatistics.from_vector(vector, 2, C).check_within(places)
    vector.view(np.int64)[place] = value
    vector[-1] = vector[-1 - C : -1].sum()
    with pytest.raises(ValueError, match=f"^{name} must be a sum over features"):
        IntegerStatistics.from_vector(vector, 2, C).check_within(places)
