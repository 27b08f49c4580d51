"""Key agreement, masks and sealed shares; all primitives are of ``cryptography``."""

from __future__ import annotations

import os
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
        raise ValueError(
            "A sealed share was changed or is for somebody else."
        ) from None
