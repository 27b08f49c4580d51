"""The protocol between members and server, without Flower."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fed3r_app.privacy.secagg import (
    Group,
    GroupFailed,
    Member,
    PublicKeys,
    UnmaskAnswer,
    group_sizes,
    group_threshold,
)
from fed3r_app.privacy.secagg.client import pair_purpose, pair_sign
from fed3r_app.privacy.secagg.crypto import add_mask, agree, seal, unseal
from tests.harness.samples import uniform_bytes

LENGTH = 1000
STAGES = ("keys", "shares", "masked", "answer")


def vectors(size: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    high = rng.integers(2**52, size=(size, LENGTH), dtype=np.int64)
    return (high - 2**51).view(np.uint64)


class Session:
    """Runs a group; ``drops`` maps a stage to the members silent from it on."""

    def __init__(
        self, size: int, threshold: int, drops: Any = None, length: int = LENGTH
    ) -> None:
        self.group = Group([f"c{i}" for i in range(size)], threshold, length)
        self.members = {i: Member(self.group.attempt) for i in self.group.clients}
        self._drops = drops or {}
        self._gone: set[int] = set()

    def present(self, stage: str, members: Any) -> list[int]:
        self._gone |= set(self._drops.get(stage, ()))
        return [i for i in sorted(members) if i not in self._gone]

    def send_keys(self) -> Session:
        for i in self.present("keys", self.members):
            self.group.take_keys(i, self.members[i].public_keys())
        self.group.check_enough(self.group.keys, "sent keys")
        return self

    def share(self) -> Session:
        group = self.send_keys().group
        for i in self.present("shares", group.keys):
            group.take_shares(i, self.members[i].share(i, group.keys, group.threshold))
        group.check_enough(group.sealed, "shared")
        return self

    def mask(self, i: int, vector: Any) -> Any:
        return self.members[i].mask(vector, self.group.sealed_for(i))

    def run(self, data: Any) -> Any:
        group = self.share().group
        for i in self.present("masked", group.sealed):
            group.take_masked(i, self.mask(i, data[i - 1].copy()))
        group.check_enough(group.survivors, "sent a vector")
        return self.unmask()

    def unmask(self) -> Any:
        for i in self.present("answer", self.group.survivors):
            answer = self.members[i].answer(self.group.survivors)
            self.group.take_answer(i, answer)
        return self.group.unmask()


@pytest.mark.parametrize("size", [3, 4, 10])
def test_masks_cancel_exactly(size: Any) -> None:
    data = vectors(size)
    threshold = group_threshold(size, 0.6)
    assert np.array_equal(Session(size, threshold).run(data), data.sum(axis=0))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("gone", [[1], [5], [3, 4]])
def test_who_drops_out_at_any_stage_is_made_up_for(stage: Any, gone: Any) -> None:
    data = vectors(5)
    session = Session(5, 3, {stage: gone})
    total = session.run(data)
    # Who is silent at the last request only is in the sum.
    summed = [i for i in range(1, 6) if stage == "answer" or i not in gone]
    assert np.array_equal(total, data[[i - 1 for i in summed]].sum(axis=0))
    assert session.group.survivors == set(summed)


def test_one_may_drop_out_at_each_stage() -> None:
    data = vectors(10)
    drops = {stage: [2 * k + 1] for k, stage in enumerate(STAGES)}
    total = Session(10, 6, drops).run(data)
    assert np.array_equal(total, data[[1, 3, 5, 6, 7, 8, 9]].sum(axis=0))


@pytest.mark.parametrize("stage", STAGES)
def test_a_group_below_its_threshold_fails(stage: Any) -> None:
    with pytest.raises(GroupFailed, match=r"only 3 of its group of 6 .* 4 are needed"):
        Session(6, 4, {stage: [1, 2, 3]}).run(vectors(6))


def test_groups_are_balanced_and_never_under_three() -> None:
    assert group_sizes(50, 10) == [10] * 5
    assert group_sizes(14, 10) == [7, 7]
    assert group_sizes(4, 10) == group_sizes(4, 3) == [4]
    assert group_sizes(11, 3) == [4, 4, 3]
    assert group_sizes(2, 3) == group_sizes(0, 3) == []


@pytest.mark.parametrize("share", [0.51, 0.6, 2 / 3, 1.0])
def test_the_threshold_is_above_half_and_never_under_three(share: float) -> None:
    for size in (3, 4, 5, 6, 7, 10, 11, 39):
        threshold = group_threshold(size, share)
        assert 3 <= threshold <= size
        assert threshold > size / 2
        assert threshold >= share * size - 1e-6


def masks_of_one_client(attempts: Any, length: Any) -> Any:
    """Return what a client with the same small vector sends in several attempts."""
    vector = np.arange(length, dtype=np.uint64) % np.uint64(3)
    sessions = [Session(3, 3, length=length).share() for _ in range(attempts)]
    return [session.mask(2, vector.copy()) for session in sessions]


def test_a_masked_vector_is_uniform() -> None:
    (sent,) = masks_of_one_client(1, 200_000)
    assert uniform_bytes(sent)
    assert not uniform_bytes(np.arange(200_000, dtype=np.uint64) % np.uint64(3))


def test_two_attempts_share_no_mask() -> None:
    one, other = masks_of_one_client(2, 200_000)
    assert uniform_bytes(one - other)  # a shared mask would leave zeros or a pattern
    assert not np.intersect1d(one, other).size > 3  # chance: 200000^2 / 2^64 = 0.002


def test_a_vector_that_came_too_late_stays_masked() -> None:
    """The server then knows the masking key, and still not the seed."""
    session = Session(5, 3).share()
    group, members = session.group, session.members
    data = vectors(5)
    late = session.mask(2, data[1].copy())
    for i in (1, 3, 4, 5):
        group.take_masked(i, session.mask(i, data[i - 1].copy()))
    assert np.array_equal(session.unmask(), data[[0, 2, 3, 4]].sum(axis=0))
    # All that the survivors gave away about it are shares of its masking key …
    assert all(2 not in a.seed_shares for a in group.answers.values())
    assert all(2 in a.key_shares for a in group.answers.values())
    # … so the mask of its seed stays on whatever it sent.
    bare = late.copy()
    for peer in (1, 3, 4, 5):
        purpose = pair_purpose(group.attempt, 2, peer)
        key = agree(members[2].masking_key, group.keys[peer].masking, purpose)
        add_mask(bare, key, -pair_sign(2, peer))
    assert not np.array_equal(bare, data[1])
    assert (bare - data[1]).max() > 2**60


def test_the_servers_view_holds_no_secret() -> None:
    session = Session(5, 3, {"masked": [2]})
    session.run(vectors(5))
    group = session.group
    parts = [keys.sealing + keys.masking for keys in group.keys.values()]
    for sealed in group.sealed.values():
        parts += sealed.values()
    for answer in group.answers.values():
        parts += [*answer.seed_shares.values(), *answer.key_shares.values()]
    seen = b"".join(parts)
    for member in session.members.values():
        for secret in (member.seed, member.sealing_key, member.masking_key):
            assert secret not in seen


def test_a_member_takes_each_step_once() -> None:
    session = Session(4, 3).share()
    with pytest.raises(ValueError, match="shared once per attempt"):
        session.members[1].share(1, session.group.keys, 3)
    session.mask(1, vectors(1)[0])
    with pytest.raises(ValueError, match="masked once"):
        session.mask(1, vectors(1)[0])


def test_a_member_refuses_a_group_of_copies_without_itself_or_of_few() -> None:
    session = Session(4, 3).send_keys()
    keys, member = session.group.keys, session.members[1]
    with pytest.raises(ValueError, match="must differ"):
        member.share(1, dict.fromkeys(keys, keys[1]), 3)
    with pytest.raises(ValueError, match="this member's own"):
        member.share(2, keys, 3)
    for threshold in (1, 2, 5):
        with pytest.raises(ValueError, match="above half of the 4 members"):
            member.share(1, keys, threshold)


def test_a_member_refuses_to_unmask_a_sum_of_few_or_of_strangers() -> None:
    session = Session(4, 3).share()
    session.mask(1, vectors(1)[0])
    with pytest.raises(ValueError, match="over 3 members at least, got 2"):
        session.members[1].answer([1, 2])
    for survivors in ([2, 3, 4], [1, 2, 3, 9]):
        with pytest.raises(ValueError, match="Survivors must be members"):
            session.members[1].answer(survivors)


def test_an_answer_never_holds_both_secrets_of_a_member() -> None:
    with pytest.raises(ValueError, match="both secrets"):
        UnmaskAnswer({1: bytes(33)}, {1: bytes(33)})
    with pytest.raises(ValueError, match="32 bytes, got"):  # nor are keys short
        PublicKeys(b"short", bytes(32))


def test_a_share_that_was_changed_or_redirected_is_refused() -> None:
    sealed = seal(bytes(32), b"share", b"1 to 2")
    assert unseal(bytes(32), sealed, b"1 to 2") == b"share"
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, content, about in (
        (bytes(32), damaged, b"1 to 2"),
        (bytes(32), sealed, b"1 to 3"),
        (b"x" * 32, sealed, b"1 to 2"),
        (bytes(32), b"short", b"1 to 2"),
    ):
        with pytest.raises(ValueError, match="changed or is for somebody else"):
            unseal(key, content, about)


def test_wrong_shares_of_a_masking_key_are_noticed() -> None:
    session = Session(5, 3, {"masked": [2]})
    session.run(vectors(5))
    session.group.answers[1].key_shares[2] = bytes(33)
    with pytest.raises(GroupFailed, match="do not belong together"):
        session.group.unmask()
