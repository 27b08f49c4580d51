"""Counts of predictions: known answers, and counts that add up."""

import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    top_k_accuracy_score,
)
from torch import Tensor

from fed3r_app.core import Metrics

N, C = 300, 8
Drawn = tuple[Tensor, Tensor]


@pytest.fixture
def drawn() -> Drawn:
    """Return scores (n, C) and labels (n,), the classes of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    y = (C * torch.rand(N, generator=generator) ** 3).long()
    y[:C] = torch.arange(C)
    scores = torch.randn(N, C, generator=generator)
    scores[torch.arange(N), y] += 0.5
    return scores, y


def test_confusions_are_scikit_learns(drawn: Drawn) -> None:
    scores, y = drawn
    matrix = confusion_matrix(y, scores.argmax(dim=1))
    found = Metrics.of(scores, y).confusions()
    assert {(i, j): n for i, j, n in found} == {
        (i, j): matrix[i, j] for i in range(C) for j in range(C) if matrix[i, j]
    }
    assert Metrics(1, 2).confusions() == []


def test_every_metric_is_scikit_learns(drawn: Drawn) -> None:
    scores, y = drawn
    predicted = scores.argmax(dim=1)
    metrics = Metrics.of(scores, y)
    assert metrics.values() == pytest.approx(
        {
            "accuracy": accuracy_score(y, predicted),
            "balanced_accuracy": balanced_accuracy_score(y, predicted),
            "top5_accuracy": top_k_accuracy_score(y, scores, k=5),
        }
    )
    assert metrics.confusion is not None
    assert metrics.confusion.tolist() == confusion_matrix(y, predicted).tolist()


def test_three_samples_counted_by_hand() -> None:
    metrics = Metrics.of(torch.eye(3)[[0, 0, 2]], torch.tensor([0, 1, 1]))
    assert (metrics.correct, metrics.total, metrics.top5) == (1, 3, 3)
    assert metrics.balanced_accuracy == 0.5  # all of class 0, none of class 1


def test_absent_classes_are_never_hits() -> None:
    scores = torch.full((1, 6), -torch.inf)
    scores[0, 0] = 1.0  # the five best of six have four that may not be predicted
    missed = [Metrics.of(scores, torch.tensor([c])).top5 for c in range(6)]
    assert missed == [1, 0, 0, 0, 0, 0]


def test_counts_of_parts_add_up_to_the_counts_of_the_whole(drawn: Drawn) -> None:
    scores, y = drawn
    whole, parts = Metrics.of(scores, y), Metrics(0, 0, 0, torch.zeros(C, C).long())
    for rows in torch.arange(N).split([0, 1, 100, N - 101]):
        parts = parts + Metrics.of(scores[rows], y[rows])
    for name in ("correct", "total", "top5"):
        assert getattr(parts, name) == getattr(whole, name)
    assert parts.values() == whole.values()


def test_what_one_part_did_not_count_the_sum_does_not_have(drawn: Drawn) -> None:
    total = Metrics.of(*drawn) + Metrics(correct=1, total=2)
    assert total.total == N + 2
    assert total.values().keys() == {"accuracy"}
