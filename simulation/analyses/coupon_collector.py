"""The coupon collector: rounds until a share of the clients has been drawn.

What sampling with replacement costs in the paper's federations: mean and standard
deviation over many simulations.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulation.tables import Table

# Number of clients of the paper's federations.
FEDERATIONS = {"Landmarks": 1262, "iNaturalist": 9275, "CIFAR-100": 100}
SHARES = (0.25, 0.5, 0.75, 1.0)


class Spread(NamedTuple):
    """Mean and standard deviation of a number of rounds."""

    mean: float
    sd: float


def rounds_to_draw(
    num_clients: int,
    per_round: int,
    shares: Sequence[float],
    simulations: int = 1000,
    seed: int = 0,
) -> list[Spread]:
    """Return how many rounds it takes to draw each share of the clients.

    Shares lie in (0, 1], in any order. A round draws distinct clients; the next one
    draws from all of them again. With s of K clients seen, the number of new ones in a
    round of kappa is hypergeometric: kappa draws without replacement from K - s new and
    s old ones. So a simulation is one number a round, and all simulations advance
    together.
    """
    if not 1 <= per_round <= num_clients:
        raise ValueError(
            f"Clients per round must be 1 to {num_clients}, the number of clients, "
            f"got {per_round}."
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"Shares must be numbers > 0 and <= 1, got {list(shares)}.")
    if simulations < 1:
        raise ValueError(f"simulations must be >= 1, got {simulations}.")
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
    # One more than the rounds after which the goal was not reached.
    reached = np.ones((len(goals), simulations), dtype=np.int64)
    seen = np.zeros(simulations, dtype=np.int64)
    open_ones = np.arange(simulations)  # simulations that have not reached every goal
    while len(open_ones):
        seen = seen + random.hypergeometric(K - seen, seen, kappa)
        reached[:, open_ones] += seen < needed
        still = seen < max(goals)
        open_ones, seen = open_ones[still], seen[still]
    return reached


@dataclass(frozen=True)
class Coupons:
    """Federations (name: clients) whose clients are drawn with replacement."""

    federations: Mapping[str, int]
    per_round: tuple[int, ...]
    shares: tuple[float, ...] = SHARES
    simulations: int = 1000

    def lines(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield mean and standard deviation of the rounds to each share.

        A line for each federation and number of clients a round.
        """
        for name, kappa in itertools.product(self.federations, self.per_round):
            rounds = rounds_to_draw(
                self.federations[name], kappa, self.shares, self.simulations, seed
            )
            yield {"name": name, "per_round": kappa, "rounds": rounds}

    def table(self, lines: Iterable[Mapping[str, Any]]) -> Table:
        """Return lines as a table."""
        rows = [
            (
                line["name"],
                self.federations[line["name"]],
                line["per_round"],
                *(f"{mean:,.0f} ± {sd:,.0f}" for mean, sd in line["rounds"]),
            )
            for line in lines
        ]
        title = (
            "Rounds to draw a share of the clients with replacement, distinct within a "
            f"round: mean ± standard deviation of {self.simulations:,} simulations"
        )
        shares = (f"{100 * share:g} %" for share in self.shares)
        return Table(title, ("federation", "clients", "per round", *shares), rows)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; return the exit code."""
    own = arguments.clients is not None
    federations = {"yours": arguments.clients} if own else FEDERATIONS
    kappas, simulations = tuple(arguments.per_round), arguments.simulations
    coupons = Coupons(federations, kappas, simulations=simulations)
    print(coupons.table(coupons.lines(arguments.seed)).markdown())
    return 0
