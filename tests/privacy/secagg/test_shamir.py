"""Any t shares give the secret; fewer say nothing."""

import itertools
import secrets
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fed3r_app.privacy.secagg import crypto as shamir


@given(
    secret=st.binary(min_size=32, max_size=32),
    threshold=st.integers(1, 5),
    extra=st.integers(0, 3),
)
@example(secret=b"\xff" * 32, threshold=3, extra=2)
def test_any_t_of_n_shares_give_the_secret(
    secret: bytes, threshold: int, extra: int
) -> None:
    points = range(1, threshold + extra + 1)
    shares = shamir.split(secret, threshold, points)
    for chosen in itertools.combinations(points, threshold):
        assert shamir.combine(shares, shamir.lagrange_weights(chosen)) == secret


def test_one_share_fewer_fits_every_secret() -> None:
    """For any other secret there is a share at a new point that leads to it."""
    shares = shamir.split(secrets.token_bytes(32), 4, [1, 2, 3, 4])
    del shares[4]
    for other in (bytes(32), secrets.token_bytes(32)):
        weights = shamir.lagrange_weights([1, 2, 3, 4])
        known = sum(weights[x] * int.from_bytes(shares[x]) for x in (1, 2, 3))
        missing = int.from_bytes(other) - known
        missing = missing * pow(weights[4], -1, shamir.PRIME) % shamir.PRIME
        completed = shares | {4: missing.to_bytes(shamir.SHARE_BYTES)}
        assert shamir.combine(completed, weights) == other


def test_the_modulus_is_prime() -> None:
    """Miller and Rabin with 40 random bases: wrong once in 2^80."""
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        x = pow(secrets.randbelow(shamir.PRIME - 3) + 2, odd, shamir.PRIME)
        chain = [pow(x, 2**power, shamir.PRIME) for power in range(twos)]
        assert x == 1 or shamir.PRIME - 1 in chain


@pytest.mark.parametrize("points", [[1, 2], [1, 2, 2], [0, 1, 2]])
def test_points_that_give_the_secret_away_are_refused(points: Any) -> None:
    with pytest.raises(ValueError, match="Points must be 3 or more"):
        shamir.split(bytes(32), 3, points)
