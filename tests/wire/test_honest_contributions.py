"""What honest clients send is never refused, however it is rounded on the way."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import FeatureMap, Limits
from fed3r_app.wire import FORMS, StatisticsBuilder, unpack_contribution

FORMS_AND_DTYPES = [("factor", "float16"), *product(FORMS, ("float32", "float64"))]
KINDS = ["relu", "sparse", "at the ends", "constant", "repeated", "tiny", "near a line"]


def draw(kind: str, n: int, d: int, rng: Any) -> Any:
    """Return features (n, d) in [0, 6], as hard to tell from lies as they come."""
    Z = np.maximum(rng.normal(size=(n, d)), 0).clip(max=6)
    if kind == "sparse":
        Z *= rng.random((n, d)) < 0.1
    if kind == "at the ends":
        Z = 6.0 * rng.integers(0, 2, size=(n, d))
    if kind == "constant":
        Z = np.full((n, d), 6.0)
    if kind == "repeated" and n:
        Z = Z[rng.integers(0, max(n // 3, 1), size=n)]
    if kind == "tiny":
        Z *= 10.0 ** rng.uniform(-12, 0, size=d)
    if kind == "near a line":
        Z = (1 + 1e-6 * rng.normal(size=(n, d))) * rng.random(d)
    return torch.from_numpy(np.ascontiguousarray(Z.astype(np.float32)))


def check(
    Z: Tensor,
    y: Any,
    num_classes: int,
    sent: tuple[str, str],
    limits: Limits,
    chunk: int = 2048,
) -> None:
    """Send samples in chunks, and read what arrives."""
    builder = StatisticsBuilder(num_classes, sent[0])
    for start in range(0, max(len(Z), 1), chunk):
        rows = slice(start, start + chunk)
        builder.add(Z[rows], torch.from_numpy(y[rows]))
    unpack_contribution(builder.pack(sent[1]), (Z.shape[1], num_classes), limits)


@settings(max_examples=300)
@given(
    st.integers(0, 2**32),
    st.sampled_from(KINDS),
    st.sampled_from(FORMS_AND_DTYPES),
    st.one_of(st.integers(0, 4), st.integers(5, 120)),
    st.integers(1, 40),
    st.integers(1, 12),
    st.booleans(),
)
def test_no_honest_client_is_refused(
    seed: int,
    kind: str,
    sent: tuple[str, str],
    n: int,
    d: int,
    num_classes: int,
    intercept: Any,
) -> None:
    rng = np.random.default_rng(seed)
    feature_map = FeatureMap(d, intercept=intercept)
    Z = feature_map(draw(kind, n, d, rng))
    limits = Limits.of(feature_map, (0.0, 6.0), max_samples=n)
    y, chunk = rng.integers(num_classes, size=n), int(rng.integers(1, 50))
    check(Z, y, num_classes, sent, limits, chunk)


@pytest.mark.parametrize("sent", FORMS_AND_DTYPES)
@pytest.mark.parametrize("n", [1, 30, 700])
def test_no_honest_client_with_random_features_is_refused(
    sent: tuple[str, str], n: int
) -> None:
    rng = np.random.default_rng(n)
    feature_map = FeatureMap(20, rf_dim=200, rf_sigma=3.0, intercept=True)
    Z = feature_map(draw("relu", n, 20, rng))
    check(Z, rng.integers(9, size=n), 9, sent, Limits.of(feature_map))


@pytest.mark.parametrize("sent", FORMS_AND_DTYPES)
@pytest.mark.parametrize(("n", "num_classes"), [(900, 200), (13, 13), (300, 1)])
def test_no_honest_client_of_real_size_is_refused(
    sent: tuple[str, str], n: int, num_classes: int
) -> None:
    rng = np.random.default_rng(5)
    Z, y = draw("sparse", n, 640, rng), rng.integers(num_classes, size=n)
    check(Z, y, 200, sent, Limits.of(FeatureMap(640), (0.0, 6.0)))
