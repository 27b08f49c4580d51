"""Shamir's secret sharing of 32 bytes: any t shares give the secret, fewer nothing."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

SECRET_BYTES, SHARE_BYTES = 32, 33
# The smallest prime above all secrets of 32 bytes.
PRIME = 2**256 + 297


def split(secret: bytes, threshold: int, points: Collection[int]) -> dict[int, bytes]:
    """Return one share for each point: values of a random polynomial.

    f(x) = secret + c_1 x + … + c_(t-1) x^(t-1) modulo a prime, with random c.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        The number t of shares that give the secret.
    points : collection of int
        Where to evaluate, at 1 or above and each once.
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
    return {x: _evaluate(coefficients, x).to_bytes(SHARE_BYTES) for x in points}


def lagrange_weights(points: Collection[int]) -> dict[int, int]:
    """Return w with f(0) = sum of w_x f(x) for every polynomial of low degree."""
    weights = {}
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        weights[x] = above * pow(below, -1, PRIME) % PRIME
    return weights


def combine(shares: Mapping[int, bytes], weights: Mapping[int, int]) -> bytes:
    """Return the secret of the shares at the points of ``lagrange_weights``."""
    value = sum(w * int.from_bytes(shares[x]) for x, w in weights.items()) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise ValueError("The shares do not belong together.")
    return value.to_bytes(SECRET_BYTES)


def _evaluate(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value
