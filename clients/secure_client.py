"""A client's side of secure aggregation, between Flower's messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fed3r_app.secagg import AnsweredMark, Member, group_threshold
from fed3r_app.wire import secure

# The member's threshold -> its vector of integers, noise included where wanted.
MakeVector = Callable[[int], NDArray[np.uint64]]


class SecureClient:
    """Answers the four questions; secrets live in ``state`` from one to the next.

    Parameters
    ----------
    state : RecordDict
        The node's own state, which never travels. A new attempt replaces the secrets
        of the one before, and the last answer deletes them.
    mark : AnsweredMark
        Whether this client has answered the last question in this run.
    threshold_share : float
        ``secagg-threshold``.
    """

    def __init__(
        self, state: RecordDict, mark: AnsweredMark, threshold_share: float
    ) -> None:
        self._state = state
        self._mark = mark
        self._threshold_share = threshold_share

    def keys(self, content: RecordDict) -> RecordDict:
        """Begin an attempt: return fresh public keys."""
        self._forget()
        self._mark.check()
        member = Member(secure.read_attempt(content))
        self._keep(member)
        return secure.pack_keys(member.public_keys())

    def share(self, content: RecordDict) -> RecordDict:
        """Return this client's secrets in sealed shares."""
        member = self._member(content)
        index, keys, threshold = secure.read_group(content)
        least = group_threshold(len(keys), self._threshold_share)
        if threshold < least:
            raise ValueError(
                f"The threshold of {len(keys)} members must be >= {least}, got "
                f"{threshold}."
            )
        sealed = member.share(index, keys, threshold)
        self._keep(member)
        return secure.pack_sealed(sealed)

    def masked(self, content: RecordDict, make_vector: MakeVector) -> RecordDict:
        """Return this client's vector under its masks."""
        member = self._member(content)
        vector = make_vector(member.threshold)
        masked = member.mask(vector, secure.read_sealed(content))
        self._keep(member)
        return secure.pack_masked(masked)

    def unmask(self, content: RecordDict) -> RecordDict:
        """Return the shares that unmask a sum; once in a run."""
        answer = self._member(content).answer(secure.read_survivors(content))
        self._mark.set()  # before it is given away
        self._forget()
        return secure.pack_answer(answer)

    def _member(self, content: RecordDict) -> Member:
        self._mark.check()
        record = self._state.config_records.get(secure.SECAGG)
        if record is None or record["attempt"] != secure.read_attempt(content):
            raise ValueError(
                "this client knows nothing of the attempt: was it restarted?"
            )
        return secure.read_member(record)

    def _keep(self, member: Member) -> None:
        self._state[secure.SECAGG] = secure.pack_member(member)

    def _forget(self) -> None:
        if secure.SECAGG in self._state:
            del self._state[secure.SECAGG]
