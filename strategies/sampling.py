"""Which clients are asked in which round: seeded, and each counted once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np


class CohortSampler:
    """Draws the clients of each round until all are counted or given up.

    Without replacement the clients are dealt once, ``per_round`` at a time: exactly
    ceil(K / per_round) rounds if no client fails. With replacement each round draws
    ``per_round`` distinct ones of all, and those counted before are not asked again.
    A client that failed is asked in a later round, ``max_retries`` times at most, and
    not at all if it would fail again.

    Parameters
    ----------
    clients : Sequence[str]
        All clients, in an order that does not depend on the run.
    per_round : int
        How many a round; 0 means all.
    seed : int
        Seed of the draws.
    max_retries : int
        How often a client that failed is asked again.
    with_replacement : bool
        How to draw.
    max_rounds : int
        Limit of the rounds with replacement; 0 means none.
    counted : Collection[str]
        Clients counted before, by an earlier part of the run.
    rounds : int
        Rounds of that earlier part: the draws continue where it stopped.
    min_clients : int
        How many counted clients are enough; 0 means all.
    """

    def __init__(
        self,
        clients: Sequence[str],
        *,
        per_round: int,
        seed: int,
        max_retries: int = 0,
        with_replacement: bool = False,
        max_rounds: int = 0,
        counted: Collection[str] = (),
        rounds: int = 0,
        min_clients: int = 0,
    ) -> None:
        self.clients = tuple(clients)
        self._min_clients = min_clients
        self._known = set(clients)
        self.counted = set(counted)
        self.failures: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._max_retries = max_retries
        self._wanted_per_round = per_round
        self._with_replacement = with_replacement
        self._max_rounds = max_rounds
        self._rounds = rounds
        self._random = np.random.default_rng(seed)
        order = self._random.permutation(len(self.clients))
        self._queue = deque(
            self.clients[i] for i in order if self.clients[i] not in self.counted
        )
        self._open = set(self._queue)  # neither counted nor given up
        # More are counted than whole rounds can have brought: one was interrupted, and
        # continues with the rest of its clients.
        begun = len(self.counted) - rounds * self._per_round
        self._rest = self._per_round - begun if 0 < begun < self._per_round else 0
        for _ in range(rounds if with_replacement else 0):
            self._draw_of_all()

    @property
    def _per_round(self) -> int:
        return min(self._wanted_per_round or len(self.clients), len(self.clients))

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients not counted so far."""
        return tuple(client for client in self.clients if client not in self.counted)

    @property
    def is_enough(self) -> bool:
        """Whether the run could do without those not counted so far."""
        return 0 < self._min_clients <= len(self.counted)

    @property
    def done(self) -> bool:
        """Whether no client is left to ask."""
        return self.out_of_rounds or not self._open

    @property
    def rounds_ahead(self) -> int:
        """How many rounds are left if no client fails; with replacement, about.

        The last of m clients to be drawn takes K / kappa (1 + 1/2 + … + 1/m) rounds.
        """
        if not self._open:
            return 0
        if self._with_replacement:
            waits = sum(1 / m for m in range(1, len(self._open) + 1))
            expected = math.ceil(len(self.clients) / self._per_round * waits)
            left = self._max_rounds - self._rounds if self._max_rounds else expected
            return min(expected, left)
        after = max(len(self._open) - self._rest, 0)
        return bool(self._rest) + -(-after // self._per_round)

    @property
    def out_of_rounds(self) -> bool:
        """Whether the rounds with replacement have reached their limit."""
        return self._with_replacement and 0 < self._max_rounds <= self._rounds

    def add(self, client: str) -> None:
        """Take in a client that came later, or came back; it is asked if missing."""
        if client not in self._known:
            self._known.add(client)
            self.clients += (client,)
        if client not in self.counted:
            self._attempts.pop(client, None)
            if client not in self._open:
                self._open.add(client)
                self._queue.append(client)

    def close(self) -> None:
        """Ask no client any more: those missing stay so."""
        self._open.clear()
        self._queue.clear()

    def draw(self) -> list[str]:
        """Return the clients to ask in the next round."""
        self._rounds += 1
        cohort = self._draw_of_all() if self._with_replacement else self._deal()
        for client in cohort:
            self._attempts[client] = self._attempts.get(client, 0) + 1
            # Until its reply says otherwise.
            self.failures[client] = "no reply"
        return cohort

    def count(self, client: str) -> None:
        """Record that a client's contribution is in the sum."""
        self.counted.add(client)
        self._open.discard(client)
        self.failures.pop(client, None)

    def fail(self, client: str, reason: str, *, permanent: bool = False) -> None:
        """Record why a client could not be counted, and whether to ask it again."""
        self.failures[client] = reason
        if permanent:
            self._attempts[client] = self._max_retries + 1

    def refund_attempt(self, client: str, reason: str) -> None:
        """Give a client its attempt back: it was not its own fault."""
        self.fail(client, reason)
        self._attempts[client] -= 1

    def close_round(self, cohort: Sequence[str]) -> None:
        """Put those of a round who are not counted back in line, or give them up."""
        for client in cohort:
            if client not in self.counted:
                if self._attempts[client] > self._max_retries:
                    self._open.discard(client)
                elif not self._with_replacement:
                    self._queue.append(client)

    def _deal(self) -> list[str]:
        size, self._rest = min(self._rest or self._per_round, len(self._queue)), 0
        return [self._queue.popleft() for _ in range(size)]

    def _draw_of_all(self) -> list[str]:
        drawn = self._random.choice(len(self.clients), self._per_round, replace=False)
        return [self.clients[i] for i in drawn if self.clients[i] in self._open]
