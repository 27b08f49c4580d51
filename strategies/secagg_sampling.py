"""Which clients form a group of secure aggregation in which round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fed3r_app.privacy.secagg import SMALLEST_GROUP, group_sizes
from strategies.sampling import CohortSampler


class GroupSampler(CohortSampler):
    """Deals clients in balanced, disjoint groups; who is left over waits for others.

    Parameters
    ----------
    group_size : int
        Clients in a group, as near as balance allows and never under 3.
    per_round : int
        A round has as many whole groups as fit in it, at least one; 0 means all. For
        the others see ``CohortSampler``.

    Attributes
    ----------
    groups : list of list of str
        The groups of the last round dealt.
    """

    def __init__(
        self, clients: Sequence[str], *, group_size: int, per_round: int, **options: Any
    ) -> None:
        super().__init__(clients, per_round=per_round, **options)
        self._group_size = group_size
        self._groups_per_round = max(per_round // group_size, 1) if per_round else None
        self.groups: list[list[str]] = []
        self._lost: set[str] = set()

    def add(self, client: str) -> None:
        """Take in a client that came later, or came back, unless it is lost."""
        if client not in self._lost:
            super().add(client)

    @property
    def done(self) -> bool:
        """Whether too few are left to form a group."""
        return len(self._queue) < SMALLEST_GROUP

    @property
    def rounds_ahead(self) -> int:
        """How many rounds it takes from here if no client fails."""
        number = len(group_sizes(len(self._queue), self._group_size))
        return -(-number // (self._groups_per_round or max(number, 1)))

    def give_up(self, client: str, reason: str) -> None:
        """Record that a client must not be asked again, also where it comes back."""
        self._lost.add(client)
        self.fail(client, reason, permanent=True)

    def close_round(self, cohort: Sequence[str]) -> None:
        """Put those who are not counted back in line, or give them up."""
        super().close_round(cohort)
        if self.done:
            for client in self._queue:
                reason = self.failures.get(client, "not asked").rstrip(".")
                self.failures[client] = f"{reason}; too few are left to form a group"

    def _deal(self) -> list[str]:
        sizes = group_sizes(len(self._queue), self._group_size)
        self.groups = [
            [self._queue.popleft() for _ in range(size)]
            for size in sizes[: self._groups_per_round]
        ]
        return [client for group in self.groups for client in group]
