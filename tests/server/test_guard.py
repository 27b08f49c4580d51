"""When a fine-tuning ends before its time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fed3r_app.core import Metrics
from fed3r_app.server.guard import Guard

START = {"a": Metrics(90, 100), "b": Metrics(50, 100)}


def ends(guard: Guard, shares: Sequence[dict[str, float]]) -> int | None:
    """Return the round whose replies end it; each says what is right by client."""
    for rounds, share in enumerate(shares):
        received = {k: Metrics(round(100 * v), 100) for k, v in share.items()}
        if guard.ends(received, rounds, {"w": torch.tensor(float(rounds))}):
            return rounds
    return None


def test_two_bad_rounds_in_a_row_end_it_and_the_last_good_model_is_kept() -> None:
    guard = Guard(START)
    bad, good = {"a": 0.71}, {"a": 0.73}
    assert ends(guard, [good, bad, good, good, bad, bad]) == 5
    assert guard.last_good is not None
    rounds, model = guard.last_good
    assert (rounds, model["w"].item()) == (3, 3.0)


def test_clients_are_compared_with_themselves() -> None:
    # b was at 50 %: 45 % are no loss. Of a and b together 70 % were right.
    assert ends(Guard(START), [{"b": 0.45}] * 3) is None
    assert ends(Guard(START), [{"a": 0.60, "b": 0.51}] * 3) == 1
    assert ends(Guard(START), [{"a": 0.63, "b": 0.50}] * 3) is None


def test_whose_start_is_not_known_does_not_count() -> None:
    assert ends(Guard(START), [{"c": 0.0}] * 3) is None
    assert ends(Guard(START), [{"a": 0.9, "c": 0.0}] * 3) is None


def test_a_later_change_of_the_model_leaves_the_kept_one_alone() -> None:
    guard, model = Guard(START), {"w": torch.zeros(3)}
    guard.ends({"a": Metrics(9, 10)}, 0, model)
    model["w"] += 1
    assert guard.last_good is not None
    assert guard.last_good[1]["w"].tolist() == pytest.approx([0.0] * 3)
