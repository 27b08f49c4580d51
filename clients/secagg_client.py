"""Secure aggregation at a node: from Flower's messages to ``privacy.secagg.client``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from clients.node import Node, NodeData
from fed3r_app.config import SECAGG
from fed3r_app.core import FeatureMap
from fed3r_app.files.row_cache import cache_dir
from fed3r_app.privacy.gaussian import PrivacyBudget, check_feature_map
from fed3r_app.privacy.release import add_noise_share
from fed3r_app.privacy.secagg import (
    FixedPointEncoding,
    IntegerStatistics,
    Member,
    UnmaskMarker,
    group_threshold,
)
from fed3r_app.wire import secagg as records

# The member's threshold -> its vector of integers, noise included where wanted.
MakeVector = Callable[[int], NDArray[np.uint64]]


@dataclass(frozen=True)
class SecureClient:
    """Answers the four requests; secrets live in ``state`` from one to the next.

    Parameters
    ----------
    state : RecordDict
        The node's own state, which never travels. A new attempt replaces the secrets
        of the one before, and the last answer deletes them.
    mark : UnmaskMarker
        Whether this client has answered the last request in this run.
    threshold_share : float
        ``secagg-threshold``.
    """

    state: RecordDict
    mark: UnmaskMarker
    threshold_share: float

    def keys(self, content: RecordDict) -> RecordDict:
        """Begin an attempt: return fresh public keys."""
        self._forget()
        self.mark.check()
        member = Member(records.read_attempt(content))
        self._keep(member)
        return records.pack_keys(member.public_keys())

    def share(self, content: RecordDict) -> RecordDict:
        """Return this client's secrets in sealed shares."""
        member = self._member(content)
        index, keys, threshold = records.read_group(content)
        least = group_threshold(len(keys), self.threshold_share)
        if threshold < least:
            raise ValueError(
                f"The threshold of {len(keys)} members must be >= {least}, got "
                f"{threshold}."
            )
        sealed = member.share(index, keys, threshold)
        self._keep(member)
        return records.pack_sealed(sealed)

    def masked(self, content: RecordDict, make_vector: MakeVector) -> RecordDict:
        """Return this client's vector under its masks."""
        member = self._member(content)
        vector = make_vector(member.threshold)
        masked = member.mask(vector, records.read_sealed(content))
        # State is a process's own: two that are asked at once both believe to be first.
        self.mark.set_masked(member.attempt)
        self._keep(member)
        return records.pack_masked(masked)

    def unmask(self, content: RecordDict) -> RecordDict:
        """Return the shares that unmask a sum; once in a run."""
        answer = self._member(content).answer(records.read_survivors(content))
        self.mark.set()  # before it is given away
        self._forget()
        return records.pack_answer(answer)

    def _member(self, content: RecordDict) -> Member:
        self.mark.check()
        record = self.state.config_records.get(records.SECAGG)
        if record is None or record["attempt"] != records.read_attempt(content):
            raise ValueError(
                "this client knows nothing of the attempt: was it restarted?"
            )
        return records.read_member(record)

    def _keep(self, member: Member) -> None:
        self.state[records.SECAGG] = records.pack_member(member)

    def _forget(self) -> None:
        if records.SECAGG in self.state:
            del self.state[records.SECAGG]


def make_secure_client(node: NodeData, context: Context) -> SecureClient:
    """Return the node's side of secure aggregation in this run."""
    if node.config.privacy != SECAGG:
        raise ValueError(f"privacy must be {SECAGG!r}, got {node.config.privacy!r}.")
    mark = UnmaskMarker(cache_dir() / SECAGG, context.run_id, node.client_id)
    return SecureClient(context.state, mark, node.config.secagg_threshold)


def integer_vector(
    node: Node, feature_map: FeatureMap, threshold: int
) -> NDArray[np.uint64]:
    """Return the statistics of the node's images as integers modulo 2^64.

    In a group of which ``threshold`` members at least end up in the sum.
    """
    config, data = node.config, node.local_data()
    check_feature_map(config.dp_epsilon, feature_map)
    given = config.secagg_max_feature
    largest = None if given == "auto" else given
    feature_range, most = node.backbone.feature_range, config.secagg_max_samples
    encoding = FixedPointEncoding.choose(feature_map, feature_range, largest, most)
    chunks = data.chunks(feature_map)
    integers = IntegerStatistics.of(chunks, data.num_classes, encoding)
    if config.dp_epsilon:
        budget = PrivacyBudget(config.dp_epsilon, config.dp_delta)
        share = budget.distributed_sigma() / math.sqrt(threshold)
        integers = add_noise_share(integers, share, encoding.bits)
    return integers.vector()
