"""The statistics of a run: their sum, who is in it, and whether it may be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flwr.app import ArrayRecord

from fed3r_app.core import Contribution, Limits, RidgeStatistics, RunningSum
from fed3r_app.privacy.release import CentralNoise, DistributedNoise
from fed3r_app.privacy.secagg import FixedPointEncoding
from fed3r_app.wire import unpack_contribution
from strategies.feature_scale import FeatureScale
from strategies.stopping import undisturbed


class Accumulator:
    """Adds up contributions, each client's once, and releases the sum.

    Parameters
    ----------
    start : RidgeStatistics
        What was counted before; zeros for a new run. Fixes d, C and the device.
    contributions : mapping
        Digest of each client's contribution that is in ``start``.
    limits : Limits or None
        What is known of the clients' samples: statistics of others are refused.
    noise : CentralNoise, DistributedNoise or None
        Makes the sum differentially private, once. None: it may be seen as it is.
    encoding : FixedPointEncoding or None
        How features became integers under secure aggregation: undone in what is seen.

    Attributes
    ----------
    space : (int, int)
        d and C.
    scale : FeatureScale or None
        Refuses features that are far larger than others, where no range is known.
    """

    def __init__(
        self,
        start: RidgeStatistics,
        contributions: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        noise: CentralNoise | DistributedNoise | None = None,
        encoding: FixedPointEncoding | None = None,
    ) -> None:
        self.contributions = dict(contributions or {})
        self.space = (start.d, start.num_classes)
        self.limits = limits or Limits()
        self.noise = noise
        self.encoding = encoding
        # Where nothing is known of the features, clients are compared.
        is_open = self.limits.high is None and self.limits.norm == math.inf
        self.scale = FeatureScale(start) if is_open else None
        self._sum = RunningSum(start)
        self._released: RidgeStatistics | None = None
        self._is_changing = False

    @property
    def n(self) -> int:
        """Number of samples in the sum, for use at the server; see `num_examples`."""
        return self._sum.n

    @property
    def num_examples(self) -> int | None:
        """Number of samples in the sum; None where differential privacy forbids it."""
        return self._sum.n if self.noise is None else None

    @property
    def is_released(self) -> bool:
        """Whether the only release of differential privacy has been made."""
        return self._released is not None

    @property
    def is_releasable(self) -> bool:
        """Whether `release` gives a consistent sum, and costs no privacy budget."""
        is_free = self.noise is None or self.is_released
        return is_free and not self._is_changing

    def unpack(self, record: ArrayRecord) -> Contribution:
        """Return the contribution in a record; raise ValueError for a bad one."""
        return unpack_contribution(record, self.space, self.limits)

    def add(
        self, contribution: Contribution, clients: Mapping[str, str], threshold: int = 0
    ) -> None:
        """Add the contribution of a client or a group, with the digest by client.

        ``threshold`` is that of a group whose members have added their shares of the
        noise.
        """
        with self._changing():
            if threshold and isinstance(self.noise, DistributedNoise):
                self.noise.add_group(len(clients), threshold)
            self._sum.add(contribution)
            self.contributions |= clients

    def release(self) -> RidgeStatistics:
        """Return the statistics that may be seen.

        The sum itself or, with differential privacy, its one noisy release: the first
        call spends the privacy budget, later ones return the same.
        """
        if self._released is not None:
            return self._released
        with self._changing():
            stats = self._sum.value()
        if self.noise is not None:
            stats = self.noise.release(stats)
        if self.encoding is not None:
            stats = self.encoding.scaled(stats)
        if self.noise is not None:
            self._released = stats
        return stats

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the sum, and who is in it, as a whole or not at all.

        A signal waits for its end. What is left half-done by anything else must not be
        saved: the last snapshot is whole.
        """
        with undisturbed():
            self._is_changing = True
            yield
            self._is_changing = False
