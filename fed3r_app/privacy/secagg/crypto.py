"""Key agreement, masks and sealed shares; all primitives are of ``cryptography``.

Only Shamir's secret sharing of 32 bytes is written here: any t shares give the secret,
fewer give nothing.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
_NONCE_BYTES = 12
# Values masked at a time: what a processor keeps near, whatever the vector's length.
_CHUNK = 1 << 16
SECRET_BYTES, SHARE_BYTES = 32, 33
SEALED_BYTES = _NONCE_BYTES + 2 * SHARE_BYTES + 16  # with the tag of AES-GCM
# The smallest prime above all secrets of 32 bytes.
PRIME = 2**256 + 297


@dataclass(frozen=True)
class PublicKeys:
    """What a member advertises: one key to seal shares with, one to agree on masks."""

    sealing: bytes
    masking: bytes

    def __post_init__(self) -> None:
        sizes = (len(self.sealing), len(self.masking))
        if sizes != (KEY_BYTES, KEY_BYTES):
            raise ValueError(f"Public keys must have {KEY_BYTES} bytes, got {sizes}.")


def new_key() -> bytes:
    """Return a new private key of X25519."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key that two members share for a purpose, from either side."""
    own = X25519PrivateKey.from_private_bytes(private)
    # Raises ValueError for the few public keys that make the result predictable.
    secret = own.exchange(X25519PublicKey.from_public_bytes(public))
    return derive(secret, purpose)


def derive(secret: bytes, purpose: str) -> bytes:
    """Return the key of a secret for a purpose, by HKDF."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(secret)


def add_mask(vector: NDArray[np.uint64], key: bytes, sign: int) -> None:
    """Add a key's mask to a vector, or subtract it, in place and modulo 2^64.

    The mask is the key stream of AES-256 in counter mode. A key is used for one mask
    only, so the counter starts at zero.
    """
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    zeros, room = bytes(8 * _CHUNK), bytearray(8 * _CHUNK + 15)
    for start in range(0, len(vector), _CHUNK):
        part = vector[start : start + _CHUNK]
        size = 8 * len(part)
        stream.update_into(memoryview(zeros)[:size], room)
        mask = np.frombuffer(room, dtype="<u8", count=len(part))
        if sign > 0:
            np.add(part, mask, out=part)
        else:
            np.subtract(part, mask, out=part)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return content encrypted and, with what it is about, authenticated."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Return what was sealed, or raise ValueError."""
    nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(key).decrypt(nonce, content, about)
    except (InvalidTag, ValueError):
        message = "A sealed share was changed or is for somebody else."
        raise ValueError(message) from None


def split(secret: bytes, threshold: int, points: Collection[int]) -> dict[int, bytes]:
    """Return one share for each point: values of a random polynomial.

    f(x) = secret + c_1 x + … + c_(t-1) x^(t-1) modulo a prime, with random c; any
    ``threshold`` = t of them give the secret of 32 bytes.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"A secret must have {SECRET_BYTES} bytes, got {len(secret)}.")
    distinct = len(set(points)) == len(points)
    if not (distinct and 1 <= threshold <= len(points) and min(points) >= 1):
        raise ValueError(
            f"Points must be {threshold} or more, distinct and >= 1, got {points}."
        )
    coefficients = [int.from_bytes(secret)]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = {}
    for x in points:
        value = sum(c * pow(x, i, PRIME) for i, c in enumerate(coefficients)) % PRIME
        shares[x] = value.to_bytes(SHARE_BYTES)
    return shares


def lagrange_weights(points: Collection[int]) -> dict[int, int]:
    """Return w with f(0) = sum of w_x f(x) for every polynomial of low degree."""
    weights = {}
    for x in points:
        others = [other for other in points if other != x]
        below = math.prod(other - x for other in others)
        weights[x] = math.prod(others) * pow(below, -1, PRIME) % PRIME
    return weights


def combine(shares: Mapping[int, bytes], weights: Mapping[int, int]) -> bytes:
    """Return the secret of the shares at the points of ``lagrange_weights``."""
    value = sum(w * int.from_bytes(shares[x]) for x, w in weights.items()) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise ValueError("The shares do not belong together.")
    return value.to_bytes(SECRET_BYTES)
