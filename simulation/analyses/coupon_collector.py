"""The coupon collector: rounds until a share of the clients has been drawn.

``python -m simulation coupons``: rounds to draw a share of the clients.

What sampling with replacement costs in the paper's federations: mean and standard
deviation over many simulations.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    pass

# Number of clients of the paper's federations.
FEDERATIONS = {"Landmarks": 1262, "iNaturalist": 9275, "CIFAR-100": 100}


PER_ROUND = (10, 20, 50)
SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number of rounds."""

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.0f}±{self.sd:.0f}"


def rounds_to_draw(
    num_clients: int,
    per_round: int,
    shares: Sequence[float],
    simulations: int = 1000,
    seed: int = 0,
) -> list[Spread]:
    """Return how many rounds it takes to draw each share of the clients.

    A round draws distinct clients; the next one draws from all of them again. With s
    of K clients seen, the number of new ones in a round of kappa is hypergeometric:
    kappa draws without replacement from K - s new and s old ones. So a simulation is
    one number a round, and all simulations advance together.

    Parameters
    ----------
    num_clients, per_round : int
        K, and kappa <= K.
    shares : sequence of float
        Shares in (0, 1], in any order.
    simulations : int
        Number of independent simulations.
    seed : int
        Seed of the draws.
    """
    _check(num_clients, per_round, shares, simulations)
    # The exact value of the decimal that was typed: 0.07 of 100 are 7 clients.
    goals = [math.ceil(Fraction(str(share)) * num_clients) for share in shares]
    rounds = _simulate(num_clients, per_round, goals, simulations, seed)
    return [Spread(float(row.mean()), float(row.std())) for row in rounds]


def _simulate(
    K: int, kappa: int, goals: Sequence[int], simulations: int, seed: int
) -> NDArray[np.int64]:
    """Return the round (goals, simulations) in which each goal was reached."""
    random = np.random.default_rng(seed)
    needed = np.array(goals)[:, None]
    reached = np.zeros((len(goals), simulations), dtype=np.int64)
    seen = np.zeros(simulations, dtype=np.int64)
    open_ones = np.arange(simulations)  # simulations that have not reached every goal
    number, last = 0, max(goals)
    while len(open_ones):
        number += 1
        seen = seen + random.hypergeometric(K - seen, seen, kappa)
        part = reached[:, open_ones]
        part[(part == 0) & (seen >= needed)] = number
        reached[:, open_ones] = part
        still = seen < last
        open_ones, seen = open_ones[still], seen[still]
    return reached


def _check(
    num_clients: int, per_round: int, shares: Sequence[float], simulations: int
) -> None:
    if not 1 <= per_round <= num_clients:
        raise ValueError(
            f"Clients per round must be 1 to {num_clients}, the number of clients, "
            f"got {per_round}."
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"Shares must be numbers > 0 and <= 1, got {list(shares)}.")
    if simulations < 1:
        raise ValueError(f"simulations must be >= 1, got {simulations}.")


@dataclass(frozen=True)
class CouponRow:
    """The rounds of one federation with so many clients a round, share by share."""

    federation: str
    num_clients: int
    per_round: int
    rounds: dict[float, Spread]


def coupon_rows(
    federations: Mapping[str, int] = FEDERATIONS,
    per_round: Sequence[int] = PER_ROUND,
    shares: Sequence[float] = SHARES,
    simulations: int = 1000,
    seed: int = 0,
) -> list[CouponRow]:
    """Return a row for each federation (name: clients) and number of clients a round.

    See ``rounds_to_draw`` for the parameters.
    """
    pass

    return [
        CouponRow(
            name,
            num_clients,
            kappa,
            dict(
                zip(
                    shares,
                    rounds_to_draw(num_clients, kappa, shares, simulations, seed),
                    strict=True,
                )
            ),
        )
        for name, num_clients in federations.items()
        for kappa in per_round
    ]


def coupon_table(rows: Sequence[CouponRow]) -> str:
    """Return the rows as a table in Markdown."""
    shares = [f"{share:.0%}" for share in rows[0].rounds]
    lines = [
        f"| federation | clients | per round | {' | '.join(shares)} |",
        "|---" * (3 + len(shares)) + "|",
    ]
    for row in rows:
        rounds = " | ".join(map(str, row.rounds.values()))
        lines.append(
            f"| {row.federation} | {row.num_clients} | {row.per_round} | {rounds} |"
        )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--clients", type=int, help="a federation of your own instead of the paper's"
    )
    parser.add_argument(
        "--per-round",
        type=int,
        nargs="+",
        default=PER_ROUND,
        help="clients a round, one or more (default: 10 20 50)",
    )
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; return the exit code."""
    own = arguments.clients is not None
    rows = coupon_rows(
        {"yours": arguments.clients} if own else FEDERATIONS,
        arguments.per_round,
        simulations=arguments.simulations,
        seed=arguments.seed,
    )
    print(
        "Rounds to draw a share of the clients with replacement, distinct within a "
        f"round: mean ± standard deviation of {arguments.simulations} simulations.\n"
    )
    print(coupon_table(rows))
    return 0
