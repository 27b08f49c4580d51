"""``python -m simulation coupons``: rounds to draw a share of the clients.

What sampling with replacement costs in the paper's federations: mean and standard
deviation over many simulations.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fed3r_app.core.coupons import Spread

# Number of clients of the paper's federations.
FEDERATIONS = {"Landmarks": 1262, "iNaturalist": 9275, "CIFAR-100": 100}
PER_ROUND = (10, 20, 50)
SHARES = (0.25, 0.5, 0.75, 1.0)


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
    from fed3r_app.core.coupons import rounds_to_draw  # brings torch along

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
