"""When a fine-tuning ends before its time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fed3r_app.core import Metrics
from fed3r_app.server.guard import Guard

MODEL = {"w": torch.tensor(-1.0)}
START = {"a": Metrics(90, 100), "b": Metrics(50, 100)}


def ends(guard: Guard, shares: Sequence[dict[str, float]]) -> int | None:
    """Return the round whose replies end it; each says what is right by client."""
    for rounds, share in enumerate(shares):
        received = {k: Metrics(round(100 * v), 100) for k, v in share.items()}
        if guard.ends(received, rounds, {"w": torch.tensor(float(rounds))}):
            return rounds
    return None


def test_two_bad_rounds_in_a_row_end_it_and_the_last_good_model_is_kept() -> None:
    guard = Guard(START, (0, MODEL))
    bad, good = {"a": 0.71}, {"a": 0.73}
    assert ends(guard, [good, bad, good, good, bad, bad]) == 5
    rounds, model = guard.last_good
    assert (rounds, model["w"].item()) == (3, 3.0)


def test_where_nothing_was_good_the_start_is_what_is_left() -> None:
    guard = Guard(START, (0, MODEL))
    assert ends(guard, [{"a": 0.1}] * 2) == 1
    assert guard.last_good == (0, MODEL)


def test_clients_are_compared_with_themselves() -> None:
    # b was at 50 %: 45 % are no loss. Of a and b together 70 % were right.
    assert ends(Guard(START, (0, MODEL)), [{"b": 0.45}] * 3) is None
    assert ends(Guard(START, (0, MODEL)), [{"a": 0.60, "b": 0.51}] * 3) == 1
    assert ends(Guard(START, (0, MODEL)), [{"a": 0.63, "b": 0.50}] * 3) is None


def test_whose_start_is_not_known_does_not_count() -> None:
    guard = Guard(START, (0, MODEL))
    assert ends(guard, [{"c": 0.0}] * 3) is None
    assert guard.last_good == (0, MODEL)  # a model that was not judged is not good
    assert ends(guard, [{"a": 0.1}, {"c": 0.9}, {"a": 0.1}]) == 2
    assert ends(Guard(START, (0, MODEL)), [{"a": 0.9, "c": 0.0}] * 3) is None


def test_who_speaks_of_other_images_than_at_the_start_does_not_count() -> None:
    guard = Guard(START, (0, MODEL))
    lie = {"a": Metrics(90, 100), "b": Metrics(0, 10**9)}
    assert guard.ends(lie, 0, MODEL) is guard.ends(lie, 1, MODEL) is None


def test_a_later_change_of_the_model_leaves_the_kept_one_alone() -> None:
    guard, model = Guard(START, (0, MODEL)), {"w": torch.zeros(3)}
    guard.ends({"a": Metrics(90, 100)}, 0, model)
    model["w"] += 1
    assert guard.last_good[1]["w"].tolist() == pytest.approx([0.0] * 3)
