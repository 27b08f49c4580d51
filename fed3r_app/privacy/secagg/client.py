"""The protocol at a client: keys, shares, masked vector, answer; no messages."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fed3r_app.privacy import SMALLEST_GROUP
from fed3r_app.privacy.secagg.crypto import (
    SHARE_BYTES,
    PublicKeys,
    add_mask,
    agree,
    derive,
    new_key,
    public_key,
    seal,
    split,
    unseal,
)


@dataclass(frozen=True)
class UnmaskAnswer:
    """Shares that unmask a sum, by whose secret they are a part of.

    Of a survivor a share of its self-mask's seed, of one who dropped out a share of
    its masking key; never both of the same member, which would unmask its vector.
    """

    seed_shares: dict[int, bytes]
    key_shares: dict[int, bytes]

    def __post_init__(self) -> None:
        if self.seed_shares.keys() & self.key_shares.keys():
            raise ValueError("An answer must not hold both secrets of a member.")
        shares = [*self.seed_shares.values(), *self.key_shares.values()]
        if any(len(share) != SHARE_BYTES for share in shares):
            raise ValueError(f"Shares must have {SHARE_BYTES} bytes.")


@dataclass
class Member:
    """The secrets of one client in one attempt; each step can be taken once.

    Parameters
    ----------
    attempt : str
        Names the attempt; part of every key that is derived.
    sealing_key, masking_key, seed : bytes
        Private keys, and the seed of the mask that no other member knows.
    index, threshold, keys
        Place in the group, shares needed to unmask, and all public keys of the group:
        known after ``share``.
    own_shares, received : bytes, dict
        What this member keeps of its own secrets, and the sealed shares of the others.
    was_masked : bool
        Whether the vector was given away.
    """

    attempt: str
    sealing_key: bytes = field(default_factory=new_key, repr=False)
    masking_key: bytes = field(default_factory=new_key, repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    index: int = 0
    threshold: int = 0
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    own_shares: bytes = field(default=b"", repr=False)
    received: dict[int, bytes] = field(default_factory=dict)
    was_masked: bool = False

    def public_keys(self) -> PublicKeys:
        """Return what the others need to know of this member."""
        return PublicKeys(public_key(self.sealing_key), public_key(self.masking_key))

    def share(
        self, index: int, keys: Mapping[int, PublicKeys], threshold: int
    ) -> dict[int, bytes]:
        """Return this member's secrets in sealed shares, one for each other member."""
        if self.keys:
            raise ValueError("Secrets are shared once per attempt.")
        self._check_group(index, keys, threshold)
        self.index, self.keys, self.threshold = index, dict(keys), threshold
        seeds = split(self.seed, threshold, sorted(keys))
        private = split(self.masking_key, threshold, sorted(keys))
        self.own_shares = seeds[index] + private[index]
        return {
            peer: self._seal(peer, seeds[peer] + private[peer])
            for peer in keys
            if peer != index
        }

    def mask(
        self, vector: NDArray[np.uint64], received: Mapping[int, bytes]
    ) -> NDArray[np.uint64]:
        """Return the vector, overwritten, under its masks.

        y_u = x_u + self mask + sum_(v > u) mask_uv - sum_(v < u) mask_uv modulo 2^64,
        over the members v who shared their secrets: pairs cancel in the sum.
        """
        if not self.keys or self.was_masked:
            raise ValueError("A vector is masked once, after the secrets are shared.")
        if not received.keys() <= self.keys.keys() - {self.index}:
            raise ValueError("Shares must come from other members of the group.")
        if len(received) + 1 < self.threshold:
            raise ValueError(
                f"At least {self.threshold} members must have shared their secrets, "
                f"got {len(received) + 1}."
            )
        self.received, self.was_masked = dict(received), True
        for peer in received:
            self._open(peer)  # a share that can't be opened must not be found out late
            purpose = pair_purpose(self.attempt, self.index, peer)
            key = agree(self.masking_key, self.keys[peer].masking, purpose)
            add_mask(vector, key, pair_sign(self.index, peer))
        add_mask(vector, self_mask_key(self.seed, self.attempt), +1)
        return vector

    def answer(self, survivors: Collection[int]) -> UnmaskAnswer:
        """Return the shares that unmask the sum of the survivors' vectors."""
        shared = {self.index, *self.received}
        if not self.was_masked or not {self.index} <= set(survivors) <= shared:
            raise ValueError(
                "Survivors must be members who shared, this one among them, got "
                f"{sorted(survivors)}."
            )
        if (number := len(set(survivors))) < self.threshold:
            raise ValueError(
                f"A sum must be over {self.threshold} members at least, got {number}."
            )
        half = SHARE_BYTES  # of the seed, then of the key
        opened = {peer: self._open(peer) for peer in self.received}
        opened[self.index] = self.own_shares
        return UnmaskAnswer(
            {peer: opened[peer][:half] for peer in sorted(survivors)},
            {peer: opened[peer][half:] for peer in sorted(shared - set(survivors))},
        )

    def _check_group(
        self, index: int, keys: Mapping[int, PublicKeys], threshold: int
    ) -> None:
        if keys.get(index) != self.public_keys() or min(keys) < 1:
            raise ValueError("The group's keys must hold this member's own.")
        both = [key for pair in keys.values() for key in (pair.sealing, pair.masking)]
        if len(set(both)) < len(both):
            raise ValueError("The keys of a group must differ.")
        if not SMALLEST_GROUP <= threshold <= len(keys) < 2 * threshold:
            raise ValueError(
                f"The threshold must be {SMALLEST_GROUP} or more and above half of the "
                f"{len(keys)} members, got {threshold}."
            )

    def _seal(self, peer: int, shares: bytes) -> bytes:
        return seal(self._sealing_key(peer), shares, self._about(self.index, peer))

    def _open(self, peer: int) -> bytes:
        about = self._about(peer, self.index)
        shares = unseal(self._sealing_key(peer), self.received[peer], about)
        if len(shares) != 2 * SHARE_BYTES:
            raise ValueError(f"Two shares must have {2 * SHARE_BYTES} bytes.")
        return shares

    def _sealing_key(self, peer: int) -> bytes:
        purpose = f"fed3r seal {self.attempt}"
        return agree(self.sealing_key, self.keys[peer].sealing, purpose)

    def _about(self, sender: int, receiver: int) -> bytes:
        return f"{self.attempt} from {sender} to {receiver}".encode()


def pair_purpose(attempt: str, one: int, other: int) -> str:
    """Return what the key of a pair's mask is for."""
    return f"fed3r pair mask {attempt} {min(one, other)} {max(one, other)}"


def pair_sign(own: int, peer: int) -> int:
    """Return the sign with which a member adds the mask it shares with a peer."""
    return +1 if own < peer else -1


def self_mask_key(seed: bytes, attempt: str) -> bytes:
    """Return the key of the mask that a member shares with no other."""
    return derive(seed, f"fed3r self mask {attempt}")
