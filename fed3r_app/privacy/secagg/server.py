"""The server's side of the four exchanges with one group."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fed3r_app.privacy import SMALLEST_GROUP
from fed3r_app.privacy.secagg.client import (
    UnmaskAnswer,
    pair_purpose,
    pair_sign,
    self_mask_key,
)
from fed3r_app.privacy.secagg.crypto import (
    SEALED_BYTES,
    PublicKeys,
    add_mask,
    agree,
    combine,
    lagrange_weights,
    new_key,
    public_key,
)


class GroupFailed(Exception):
    """Too few members are left, or what they sent does not fit together."""


def group_sizes(num_clients: int, wanted: int) -> list[int]:
    """Return the sizes of balanced groups: of ``wanted`` at most, of 3 at least.

    Where both can't be, as for 4 clients in groups of 3, groups are larger. Fewer
    than 3 clients make no group.
    """
    number = min(-(-num_clients // wanted), num_clients // SMALLEST_GROUP)
    if not number:
        return []
    size, larger = divmod(num_clients, number)
    return [size + 1] * larger + [size] * (number - larger)


def group_threshold(size: int, share: float) -> int:
    """Return how many of a group must stay: that share, above half, at least 3."""
    # A share such as 0.6 of 5 is 3, not the 4 of a rounding error above.
    return max(math.ceil(size * share - 1e-9), size // 2 + 1, SMALLEST_GROUP)


class Group:
    """One attempt to learn the sum of the vectors of some clients, and only that.

    Members are numbered from 1, their vectors have ``length`` integers. Each stage
    takes the replies, drops members without one, and raises GroupFailed if fewer than
    ``threshold`` are left.
    """

    def __init__(self, clients: Collection[str], threshold: int, length: int) -> None:
        self.attempt = secrets.token_hex(16)
        self.clients = dict(enumerate(clients, start=1))
        self.threshold = threshold
        self.keys: dict[int, PublicKeys] = {}
        self.sealed: dict[int, dict[int, bytes]] = {}
        self.survivors: set[int] = set()
        self.answers: dict[int, UnmaskAnswer] = {}
        self._total = np.zeros(length, dtype=np.uint64)

    def take_keys(self, member: int, keys: PublicKeys) -> None:
        """Record a member's public keys, with which all others can agree."""
        taken = {
            key for pair in self.keys.values() for key in (pair.sealing, pair.masking)
        }
        if keys.sealing == keys.masking or taken & {keys.sealing, keys.masking}:
            raise ValueError("The keys of a group must differ.")
        own = new_key()
        for key in (keys.sealing, keys.masking):
            agree(own, key, "test")
        self.keys[member] = keys

    def take_shares(self, member: int, sealed: Mapping[int, bytes]) -> None:
        """Record a member's sealed shares, one for each other member."""
        if sealed.keys() != self.keys.keys() - {member}:
            raise ValueError("There must be one sealed share for each other member.")
        if any(len(each) != SEALED_BYTES for each in sealed.values()):
            raise ValueError(f"Sealed shares must have {SEALED_BYTES} bytes.")
        self.sealed[member] = dict(sealed)

    def take_masked(self, member: int, vector: NDArray[np.uint64]) -> None:
        """Add a member's masked vector to the sum; it is not kept."""
        if vector.shape != self._total.shape or vector.dtype != np.uint64:
            raise ValueError(
                f"A masked vector must be {len(self._total)} uint64, got "
                f"{vector.dtype} of shape {vector.shape}."
            )
        self._total += vector
        self.survivors.add(member)

    def take_answer(self, member: int, answer: UnmaskAnswer) -> None:
        """Record a member's shares of the secrets that are needed."""
        if (
            answer.seed_shares.keys() != self.survivors
            or answer.key_shares.keys() != self.dropped
        ):
            raise ValueError("An answer must hold one share for each member.")
        self.answers[member] = answer

    @property
    def dropped(self) -> set[int]:
        """Members who shared their secrets and sent no vector."""
        return self.sealed.keys() - self.survivors

    def sealed_for(self, member: int) -> dict[int, bytes]:
        """Return the sealed shares that others have for a member, by sender."""
        return {
            sender: sealed[member]
            for sender, sealed in self.sealed.items()
            if sender != member
        }

    def check_enough(self, members: Collection[int], what: str) -> None:
        """Raise GroupFailed if a stage ended with too few."""
        if len(members) < self.threshold:
            raise GroupFailed(
                f"only {len(members)} of its group of {len(self.clients)} {what}, and "
                f"{self.threshold} are needed"
            )

    def unmask(self) -> NDArray[np.uint64]:
        """Return the sum of the survivors' vectors modulo 2^64.

        Raises GroupFailed, or ValueError where shares do not belong together.
        """
        self.check_enough(self.answers, "answered the last request")
        weights = lagrange_weights(sorted(self.answers)[: self.threshold])
        for survivor in self.survivors:
            shares = {x: self.answers[x].seed_shares[survivor] for x in weights}
            key = self_mask_key(combine(shares, weights), self.attempt)
            add_mask(self._total, key, -1)
        for dropped in self.dropped:
            shares = {x: self.answers[x].key_shares[dropped] for x in weights}
            self._remove_pairs(dropped, combine(shares, weights))
        return self._total

    def _remove_pairs(self, dropped: int, private: bytes) -> None:
        """Take out the masks that survivors share with one who dropped out."""
        if public_key(private) != self.keys[dropped].masking:
            raise GroupFailed("the shares of a masking key do not belong together")
        for survivor in self.survivors:
            purpose = pair_purpose(self.attempt, survivor, dropped)
            key = agree(private, self.keys[survivor].masking, purpose)
            add_mask(self._total, key, -pair_sign(survivor, dropped))
