r"""One noisy release of the statistics: the Gaussian mechanism on (A, b, counts).

Two data sets are neighbours if one has one sample more. With z its features, of norm
B at most, and y its label, that sample adds zz' to A, z to column y of b, and 1 to
count y. As a vector, A counts by its upper triangle with the entries off the diagonal
times sqrt(2): its Euclidean norm is then the Frobenius norm, ||zz'||_F = ||z||^2. So
the vector moves by

    Delta = sqrt(||z||^4 + ||z||^2 + 1) <= sqrt(B^4 + B^2 + 1)

and independent noise N(0, sigma^2) on each of its entries is the Gaussian mechanism.
Back in A, entries off the diagonal have noise with standard deviation sigma / sqrt(2):
a symmetric Gaussian matrix whose spectral norm is close to sigma sqrt(2d), which is why
that is the ridge penalty: what lies below it is noise, and it depends on no data.

Floating-point sums of data and noise would give away last digits of the data. So A and
b are first rounded to multiples of 2^-24, and the noise likewise: their sum is the
Gaussian mechanism's output, rounded, and has no digits beyond. Rounding the data may
move neighbours further apart; ``release_sensitivity`` has that in it.

``PrivacyBudget`` says how much noise a budget asks for; ``secure_normals`` draws it.
The shares that clients add under secure aggregation are in ``privacy.release``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fed3r_app.core import FeatureMap, RidgeStatistics
from fed3r_app.core.random_features import box_muller, uniform_of_bits
from fed3r_app.core.statistics import mirror_upper, packed_size, unpack_upper

# How many standard normal draws, float64 (size,).
Normals = Callable[[int], Tensor]

# As fine as float32 holds features of norm 1; sums of 2^29 samples are still exact
# multiples of it in float64, whose integers end at 2^53.
_UNIT = 2.0**-24
# Every sample's features are brought to this norm, B. With B = 1 the parts of A, b and
# the counts in the sensitivity are equal.
NORM = 1.0
NEIGHBOURS = "add or remove one sample"
_CHUNK = 2**20  # numbers drawn at a time: 8 MB


def sensitivity(norm: float) -> float:
    """Return sqrt(B^4 + B^2 + 1): how far one sample of norm B moves (A, b, counts)."""
    return math.sqrt(norm**4 + norm**2 + 1)


def release_sensitivity(norm: float, d: int, num_classes: int) -> float:
    """Return how far one sample moves what ``gaussian_mechanism`` adds noise to.

    Rounding moves an entry of A or b by 2^-25 at most, times sqrt(2) off the diagonal,
    on either side.
    """
    entries = packed_size(d, d) + d * num_classes
    return sensitivity(norm) + _UNIT * math.sqrt(2 * entries)


def gaussian_mechanism(
    stats: RidgeStatistics, sigma: float, normals: Normals
) -> RidgeStatistics:
    """Return the statistics with noise of ``add_noise``, made valid again."""
    return make_valid(add_noise(stats, sigma, normals))


def add_noise(
    stats: RidgeStatistics, sigma: float, normals: Normals
) -> RidgeStatistics:
    """Return the statistics with noise N(0, sigma^2) in isometric coordinates.

    Features have the norm B at most, sigma is a multiple of ``release_sensitivity``,
    and ``normals`` draws numbers which cannot be foreseen.
    """
    d, num_classes = stats.d, stats.num_classes
    triangle = normals(packed_size(d, d)).numpy()
    noise = unpack_upper(triangle, d, d) * (sigma / math.sqrt(2))
    noise.diagonal().mul_(math.sqrt(2))
    A = _to_grid(stats.A.cpu()) + _to_grid(mirror_upper(noise))
    noise = normals(d * num_classes).reshape(d, num_classes) * sigma
    b = _to_grid(stats.b.cpu()) + _to_grid(noise)
    # Counts are whole numbers as they are.
    counts = stats.counts.cpu() + (normals(num_classes) * sigma).round().to(torch.int64)
    return RidgeStatistics(A, b, counts).to(stats.A.device)


def make_valid(noisy: RidgeStatistics) -> RidgeStatistics:
    """Return noisy statistics with negative eigenvalues and counts set to 0.

    A becomes the positive semidefinite matrix nearest to it. That looks at noisy values
    only, and costs no privacy.
    """
    values, vectors = torch.linalg.eigh(noisy.A)
    A = mirror_upper((vectors * values.clamp(min=0)) @ vectors.mT)
    return RidgeStatistics(A, noisy.b, noisy.counts.clamp(min=0))


def private_lambda(sigma: float, d: int) -> float:
    """Return sigma sqrt(2d), the size of the noise in A: it depends on no data."""
    return sigma * math.sqrt(2 * d)


def _to_grid(values: Tensor) -> Tensor:
    return (values / _UNIT).round() * _UNIT


@dataclass(frozen=True)
class PrivacyBudget:
    """(epsilon, delta)-differential privacy of one Gaussian release."""

    epsilon: float
    delta: float

    def noise_multiplier(self) -> float:
        """Return the least standard deviation of the noise for a sensitivity of 1."""
        # Seconds to import, and only where noise is asked for.
        import dp_accounting

        return float(dp_accounting.get_sigma_gaussian(self.epsilon, self.delta))

    def central_sigma(self, d: int, num_classes: int) -> float:
        """Return the standard deviation of the noise that the server adds."""
        return self.noise_multiplier() * release_sensitivity(NORM, d, num_classes)

    def distributed_sigma(self) -> float:
        """Return the standard deviation that the clients' noise must have together."""
        # Integers are exact: nothing is rounded after the features are.
        return self.noise_multiplier() * sensitivity(NORM)


def check_feature_map(epsilon: float, feature_map: FeatureMap) -> None:
    """Raise unless a client's features get the norm that its privacy relies on."""
    wanted = NORM if epsilon else 0.0
    if feature_map.norm != wanted:
        raise ValueError(
            f"Features must be brought to norm {wanted:g} with dp-epsilon = "
            f"{epsilon:g}, got {feature_map.norm:g} from the server."
        )


def secure_normals(size: int) -> Tensor:
    """Return standard normal numbers (size,), float64, that cannot be foreseen.

    From the operating system's cryptographic generator, by Box and Muller: with the
    seed of another generator, once guessed, the noise could be taken off again.
    """
    parts = [np.zeros(0)]
    for start in range(0, size, _CHUNK):
        even = 2 * ((min(_CHUNK, size - start) + 1) // 2)
        raw = np.frombuffer(os.urandom(8 * even), dtype=np.uint64)
        parts.append(box_muller(uniform_of_bits(raw)))
    return torch.from_numpy(np.concatenate(parts)[:size])
