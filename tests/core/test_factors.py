"""Factors: the same sums, and nothing but the sums."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import FactorBuilder, RidgeStatistics
from tests.harness.samples import Draw, make_factor

C = 4
EPS = torch.finfo(torch.float64).eps
Samples = tuple[Tensor, Tensor]


def as_samples(Z: Any) -> Samples:
    y = np.random.default_rng(0).integers(C, size=len(Z))
    return torch.as_tensor(np.array(Z, dtype=np.float64)), torch.from_numpy(y)


def relu(n: int, d: int, seed: int) -> Any:
    return np.maximum(np.random.default_rng(seed).normal(size=(n, d)), 0)


def pixels(n: int, d: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 17, size=(n, d)) / 16


def with_zero_columns(Z: Any) -> Any:
    Z = Z.copy()
    Z[:, [0, 1, 4]] = 0
    return Z


# Each has a gap between its smallest singular value and rounding, as its name says
# why: condition numbers stay below 1e4, so R and S move by 1e4 eps = 2e-12 at most
# when the rows do.
CLIENTS = {
    "one image": relu(1, 12, 0),
    "one image behind zero columns": with_zero_columns(relu(1, 12, 1)),
    "two images": relu(2, 12, 2),
    "two images behind zero columns": with_zero_columns(relu(2, 12, 3)),
    "two equal images": relu(1, 12, 4).repeat(2, axis=0),
    "two proportional images": relu(1, 12, 4) * [[1.0], [0.5]],
    "repeated images": relu(4, 12, 5)[[0, 1, 2, 3, 1, 1, 0]],
    "blank images": np.zeros((3, 12)),
    "some blank images": np.concatenate([relu(3, 12, 6), np.zeros((4, 12))]),
    "equal columns": relu(9, 4, 7)[:, [0, 1, 0, 2, 3, 3, 0, 1]],
    "columns of equal norm": np.eye(8)[[0, 1, 2, 3, 4, 5, 6, 7]],
    "columns of equal norm, few": np.sign(np.random.default_rng(8).normal(size=(5, 9))),
    "pixels, few": pixels(5, 12, 9),
    "pixels, many": with_zero_columns(pixels(60, 12, 10)),
    "binary": (pixels(40, 12, 11) > 0.5) * 1.0,
    "low rank": pixels(20, 3, 12) @ pixels(3, 12, 13),
    "low rank, many": relu(90, 3, 14) @ relu(3, 12, 15),
    "an intercept": np.concatenate([relu(20, 11, 16), np.ones((20, 1))], axis=1),
    "many images": relu(100, 12, 17),
    "as many images as features": relu(12, 12, 18),
    "one feature": relu(7, 1, 19),
    "columns of many sizes": relu(30, 12, 20) * np.logspace(0, -3, 12),
}
clients = pytest.mark.parametrize(
    "client", list(map(as_samples, CLIENTS.values())), ids=CLIENTS.keys()
)


def assert_same_factor(one: Any, other: Any, atol: float = 1e-10) -> None:
    assert torch.equal(one.pivots, other.pivots)
    assert torch.equal(one.classes, other.classes)
    assert torch.equal(one.counts, other.counts)
    torch.testing.assert_close(one.R, other.R, rtol=0, atol=atol)
    torch.testing.assert_close(one.S, other.S, rtol=0, atol=atol)


@clients
def test_the_factor_holds_the_statistics(client: Samples) -> None:
    Z, y = client
    factor, expected = make_factor(Z, y, C), RidgeStatistics.of(Z, y, C)
    # QR is backward stable: n d eps relative to the largest entry bounds both.
    stats, rounding = factor.statistics(), Z.numel() * EPS
    reach = float(Z.norm())
    torch.testing.assert_close(stats.A, expected.A, rtol=0, atol=reach**2 * rounding)
    atol = reach * len(Z) * rounding
    torch.testing.assert_close(stats.b, expected.b, rtol=0, atol=atol)
    assert torch.equal(stats.counts, expected.counts)
    assert torch.equal(stats.A, stats.A.T)
    assert (factor.n, factor.d) == Z.shape


@clients
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_images_does_not_show(client: Samples, seed: int) -> None:
    Z, y = client
    order = np.random.default_rng(seed).permutation(len(Z))
    assert_same_factor(make_factor(Z[order], y[order], C), make_factor(Z, y, C))


@clients
@settings(max_examples=15)
@given(data=st.data())
def test_any_cut_into_chunks_gives_the_same_factor(client: Samples, data: Any) -> None:
    Z, y = client
    cuts = sorted(data.draw(st.lists(st.integers(0, len(Z)), max_size=8)))
    assert_same_factor(make_factor(Z, y, C, cuts), make_factor(Z, y, C))


@clients
@pytest.mark.parametrize("seed", range(3))
def test_the_factor_depends_on_A_alone(client: Samples, seed: int) -> None:
    Z, y = client
    noise = np.random.default_rng(seed).normal(size=(len(Z), len(Z)))
    Q = torch.from_numpy(np.linalg.qr(noise)[0])
    rotated, factor = make_factor(Q @ Z, y, C), make_factor(Z, y, C)
    assert torch.equal(rotated.pivots, factor.pivots)
    torch.testing.assert_close(rotated.R, factor.R, rtol=0, atol=1e-9)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["normal", "relu", "integer"]),
    n=st.integers(1, 60),
    d=st.integers(6, 20),
    seed=st.integers(0, 999),
)
def test_drawn_clients_are_factored_whatever_the_order_of_their_images(
    draw: Draw, kind: str, n: int, d: int, seed: int
) -> None:
    Z, y = draw(kind, n, d, C, seed)
    singular = torch.linalg.svdvals(Z)
    singular = singular[singular > 1e-12 * singular[:1]]
    order = np.random.default_rng(seed).permutation(n)
    # R and S move with the condition number of Z; a small one is most of the draws.
    condition = float(singular[0] / singular[-1]) if len(singular) else 1.0
    atol = max(1e-10, 100 * condition * EPS * max(n, d))
    assert_same_factor(make_factor(Z[order], y[order], C), make_factor(Z, y, C), atol)


@clients
def test_the_factor_is_triangular_with_a_positive_diagonal(client: Samples) -> None:
    Z, y = client
    factor = make_factor(Z, y, C)
    rank = len(factor.pivots)
    leading = factor.R[:, factor.pivots]
    assert torch.equal(leading, leading.triu())
    assert (leading.diagonal() > 0).all()
    assert rank == np.linalg.matrix_rank(Z.numpy(), tol=1e-9)


@clients
def test_the_factor_is_never_larger_than_the_sums(client: Samples) -> None:
    Z, y = client
    factor = make_factor(Z, y, C)
    (rank, d), present = factor.R.shape, len(factor.classes)
    # The trapezium that travels, against the triangle of A and the columns of b.
    assert rank <= min(len(Z), d)
    assert rank * d - rank * (rank - 1) // 2 <= d * (d + 1) // 2
    assert factor.S.shape == (rank, present)
    assert factor.classes.tolist() == sorted(set(y.tolist()))


def test_an_image_never_travels_as_a_row_when_others_are_there() -> None:
    # A plain QR leaves the last image in R as it is when leading columns are zero.
    Z, y = as_samples(with_zero_columns(relu(3, 12, 21)))
    R = make_factor(Z, y, C).R
    for z in Z:
        assert (R - z).norm(dim=1).min() > 1e-3
        assert (R + z).norm(dim=1).min() > 1e-3


def test_no_images_make_a_factor_of_no_rows() -> None:
    factor = make_factor(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), C)
    assert factor.R.shape == (0, 5) and factor.S.shape == (0, 0)
    assert factor.statistics().n == 0


def test_a_buffer_may_be_reused_after_it_was_added() -> None:
    Z, y = as_samples(relu(6, 5, 0))
    expected = make_factor(Z, y, C)
    builder = FactorBuilder(C)
    for start in (0, 3):
        buffer, labels = Z[start : start + 3].clone(), y[start : start + 3].clone()
        builder.add(buffer, labels)
        buffer.fill_(7.0)
        labels.fill_(0)
    assert_same_factor(builder.build(), expected)


def test_building_twice_gives_the_same_factor() -> None:
    Z, y = as_samples(relu(30, 5, 0))
    builder = FactorBuilder(C)
    builder.add(Z, y)
    assert_same_factor(builder.build(), builder.build(), atol=0)


def test_a_large_client_is_held_in_bounded_memory() -> None:
    builder = FactorBuilder(C)
    for seed in range(20):
        builder.add(*as_samples(relu(50, 6, seed)))
        assert len(builder._stack()[0]) <= 2 * 6


def test_a_builder_without_chunks_or_with_bad_ones_is_refused() -> None:
    builder = FactorBuilder(C)
    with pytest.raises(ValueError, match="needs to know d"):
        builder.build()
    builder.add(*as_samples(relu(3, 5, 0)))
    with pytest.raises(ValueError, match="must have d = 5 features, got 6"):
        builder.add(*as_samples(relu(3, 6, 0)))
    with pytest.raises(ValueError, match="Features must be finite"):
        builder.add(*as_samples(np.full((3, 5), np.nan)))
