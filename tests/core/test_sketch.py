"""A sketch is known again after rounding, and whatever changes in a contribution."""

from typing import Any

import pytest
import torch

from fed3r_app.core import RidgeStatistics, SketchVectors
from fed3r_app.wire import pack_statistics, unpack_contribution
from tests.harness.samples import Draw, make_factor

D, C, NAMES = 12, 4, ("ant", "bee", "cat", "dog")
F64 = torch.float64
VECTORS = SketchVectors(b"secret", D)


def statistics(draw: Draw) -> RidgeStatistics:
    return RidgeStatistics.of(*draw("relu", 40, D, C, 1), C)


def test_a_factor_and_its_matrices_have_one_sketch(draw: Draw) -> None:
    Z, y = draw("normal", 9, D, C, 0)
    factor = VECTORS.sketch(make_factor(Z, y, C), NAMES)
    matrices = VECTORS.sketch(RidgeStatistics.of(Z, y, C), NAMES)
    assert factor.difference(matrices, F64) is None
    assert sum(factor.counts.values()) == 9


def test_the_forms_are_what_they_are_said_to_be(draw: Draw) -> None:
    stats = statistics(draw)
    v, u = VECTORS._v, VECTORS._u
    w = torch.stack([VECTORS._of_class(name) for name in NAMES])
    sketch = VECTORS.sketch(stats, NAMES)
    torch.testing.assert_close(
        torch.tensor(sketch.of_A, dtype=F64), (v.T @ stats.A @ v).diagonal()
    )
    torch.testing.assert_close(
        torch.tensor(sketch.of_b, dtype=F64), (u.T @ stats.b @ w).diagonal()
    )


def test_classes_may_be_numbered_anew(draw: Draw) -> None:
    stats = statistics(draw)
    moved = stats.relabelled({0: 4, 1: 0, 2: 1, 3: 2}, 5)
    names = ("bee", "cat", "dog", "eel", "ant")
    again = VECTORS.sketch(moved, names)
    assert VECTORS.sketch(stats, NAMES).difference(again, F64) is None


def test_no_images_have_a_sketch_too() -> None:
    empty = VECTORS.sketch(RidgeStatistics.zeros(D, C), NAMES)
    assert empty.counts == {}
    assert empty.difference(empty, F64) is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_features_made_on_another_machine_are_known_again(
    draw: Draw, dtype: Any
) -> None:
    Z, y = draw("relu", 500, D, C, 0)
    # float32 sums in another order.
    other = Z * (1 + 1e-6 * torch.randn(Z.shape, generator=torch.manual_seed(0)))
    sent, again = (
        VECTORS.sketch(
            unpack_contribution(pack_statistics(X, y, C, dtype=dtype)), NAMES
        )
        for X in (Z, other)
    )
    assert sent.difference(again, getattr(torch, dtype)) is None


def one_entry_of_A(stats: RidgeStatistics) -> None:
    stats.A[2, 3] += 1e-3 * stats.A.diagonal().max()


def labels_of_two_classes(stats: RidgeStatistics) -> None:
    stats.b[:, 0], stats.b[:, 1] = stats.b[:, 1].clone(), stats.b[:, 0].clone()


def a_little_of_all(stats: RidgeStatistics) -> None:
    stats.A.mul_(1 + 1e-4)


def one_more_image(stats: RidgeStatistics) -> None:
    stats.counts[3] += 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (one_entry_of_A, "A"),
        (a_little_of_all, "A"),
        (labels_of_two_classes, "b"),
        (one_more_image, "class counts"),
    ],
)
def test_whatever_changes_is_found(draw: Draw, change: Any, what: str) -> None:
    stats, changed = statistics(draw), statistics(draw)
    change(changed)
    sketch = VECTORS.sketch(stats, NAMES)
    found = sketch.difference(VECTORS.sketch(changed, NAMES), torch.float32)
    assert found == what


def test_another_secret_gives_other_values(draw: Draw) -> None:
    stats = statistics(draw)
    other = SketchVectors(b"another", D).sketch(stats, NAMES)
    assert VECTORS.sketch(stats, NAMES).difference(other, torch.float16) == "A"
