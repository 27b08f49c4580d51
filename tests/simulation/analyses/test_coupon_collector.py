"""The coupon collector, against cases solved by hand and the paper's table."""

import math
from typing import Any

import pytest

from simulation.__main__ import main
from simulation.analyses.coupon_collector import rounds_to_draw

SHARES = (0.25, 0.5, 0.75, 1.0)
# (clients, per round): mean and sd of the rounds for each share, as published.
PAPER = {
    (1262, 10): [(37, 1), (88, 2), (175, 4), (970, 155)],
    (1262, 20): [(19, 1), (44, 1), (87, 2), (483, 79)],
    (1262, 50): [(8, 0), (18, 1), (35, 1), (191, 32)],
    (9275, 10): [(267, 2), (643, 5), (1286, 12), (9020, 1189)],
    (9275, 20): [(134, 1), (322, 3), (643, 6), (4494, 596)],
    (9275, 50): [(54, 1), (129, 1), (257, 2), (1809, 247)],
    (100, 10): [(3, 0), (7, 1), (14, 1), (50, 12)],
    (100, 20): [(2, 0), (4, 0), (7, 1), (24, 5)],
    (100, 50): [(1, 0), (1, 0), (3, 0), (8, 2)],
}


@pytest.mark.parametrize("federation", PAPER, ids=str)
def test_the_papers_table_is_met_within_its_spread(federation: tuple[int, int]) -> None:
    ours = rounds_to_draw(*federation, SHARES)
    for spread, (mean, sd) in zip(ours, PAPER[federation], strict=True):
        # Both are means of 1000 simulations; the paper's is rounded, too.
        error = 4 * math.sqrt(2 / 1000) * max(sd, 0.5)
        assert abs(spread.mean - mean) <= 0.5 + error
        # A standard deviation of 1000 draws is known to about 1 / sqrt(2000).
        assert abs(spread.sd - sd) <= 0.5 + 0.15 * sd


def test_one_at_a_time_is_the_classical_collector() -> None:
    # K (1 + 1/2 + ... + 1/K), with variance K^2 sum 1/k^2 - K sum 1/k.
    K, simulations = 20, 4000
    harmonic = sum(1 / k for k in range(1, K + 1))
    variance = K**2 * sum(1 / k**2 for k in range(1, K + 1)) - K * harmonic
    (spread,) = rounds_to_draw(K, 1, [1.0], simulations)
    error = 4 * math.sqrt(variance / simulations)
    assert spread.mean == pytest.approx(K * harmonic, abs=error)
    assert spread.sd == pytest.approx(math.sqrt(variance), rel=0.1)


def test_shares_may_come_in_any_order_and_a_seed_repeats() -> None:
    up = rounds_to_draw(50, 5, [0.5, 1.0], seed=1)
    down = rounds_to_draw(50, 5, [1.0, 0.5], seed=1)
    assert up == down[::-1]
    assert up != rounds_to_draw(50, 5, [0.5, 1.0], seed=2)


@pytest.mark.parametrize(
    ("clients", "per_round", "share", "expected", "error"),
    [
        (7, 7, 1.0, (1, 0), 0),  # all clients at once
        # After round 1 one client is new; it is drawn with probability p = 2/3 a
        # round: 1 / p rounds more in the mean, sqrt(1 - p) / p their deviation.
        (3, 2, 1.0, (1 + 3 / 2, math.sqrt(3) / 2), 0.03),
        # The decimal that was typed: in floating point 0.07 * 100 is a little more
        # than 7, which would be 8 clients.
        (100, 7, 0.07, (1, 0), 0),
    ],
)
def test_cases_solved_by_hand(
    clients: int,
    per_round: int,
    share: float,
    expected: tuple[float, float],
    error: float,
) -> None:
    found = rounds_to_draw(clients, per_round, [share], simulations=20_000)
    assert found == [pytest.approx(expected, rel=0, abs=error)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((5, 6, [1.0]), "Clients per round must be 1 to 5.*got 6"),
        ((5, 0, [1.0]), "Clients per round must be 1 to 5.*got 0"),
        ((5, 1, [0.0]), r"Shares must be .* got \[0.0\]"),
        ((5, 1, []), "Shares must be"),
        ((5, 1, [1.0], 0), "simulations must be >= 1, got 0"),
    ],
)
def test_a_bad_argument_is_named(arguments: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rounds_to_draw(*arguments)


def test_the_command_prints_the_table_of_a_federation_of_ones_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["coupons", "--clients", "4", "--per-round", "2", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| federation | clients | per round | 25 % | 50 % | 75 % | 100 % |" in lines
    # All four at once: one round for every share.
    assert lines[-1] == "| yours | 4 | 4 | 1 ± 0 | 1 ± 0 | 1 ± 0 | 1 ± 0 |"


def test_more_clients_a_round_than_there_are_is_one_clear_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["coupons", "--clients", "4", "--per-round", "9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Clients per round must be 1 to 4")
    assert "Traceback" not in error
