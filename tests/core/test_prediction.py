"""Predictions leave out the classes nobody has."""

import pytest
import torch

from fed3r_app.core import count_correct, predict

Z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
# The scores of classes 0 and 2 are all negative, so the zero of class 1 is the largest.
W = torch.tensor([[-1.0, 0.0, -2.0], [-2.0, 0.0, -1.0]], dtype=torch.float64)
PRESENT = torch.tensor([True, False, True])


def test_an_absent_class_is_not_predicted_though_its_score_is_the_largest() -> None:
    assert (Z @ W).argmax(dim=1).tolist() == [1, 1, 1]
    assert predict(Z[:2], W, PRESENT).tolist() == [0, 2]


def test_with_all_classes_present_the_largest_score_wins() -> None:
    assert predict(Z, -W, torch.ones(3, dtype=torch.bool)).tolist() == [2, 0, 0]


def test_features_of_another_precision_are_fine() -> None:
    assert predict(Z[:2].half(), W, PRESENT).tolist() == [0, 2]


def test_correct_predictions_are_counted() -> None:
    assert count_correct(Z[:2], torch.tensor([0, 2]), W, PRESENT) == 2
    assert count_correct(Z[:2], torch.tensor([0, 1]), W, PRESENT) == 1
    assert count_correct(Z[:0], torch.tensor([], dtype=torch.int64), W, PRESENT) == 0


def test_a_classifier_without_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one class with samples, got 0"):
        predict(Z, W, torch.zeros(3, dtype=torch.bool))
