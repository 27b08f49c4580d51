"""The protocol between members and server, without Flower."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

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

LENGTH = 1000
STAGES = ("keys", "shares", "masked", "answer")
# A sound generator fails a test at this level once in 10^10 runs.
LEVEL = 1e-10


def vectors(size: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    high = rng.integers(2**52, size=(size, LENGTH), dtype=np.int64)
    return (high - 2**51).view(np.uint64)


class Session:
    """Runs a group; ``drops`` maps a stage to the members silent from it on."""

    def __init__(self, size: Any, threshold: Any, drops: Any = None) -> None:
        self.group = Group([f"c{i}" for i in range(size)], threshold, LENGTH)
        self.members = {i: Member(self.group.attempt) for i in self.group.clients}
        self.masked: dict[Any, Any] = {}
        self._drops = drops or {}
        self._gone: set[Any] = set()

    def present(self, stage: Any, members: Any) -> Any:
        self._gone |= set(self._drops.get(stage, ()))
        return [i for i in sorted(members) if i not in self._gone]

    def run(self, data: Any) -> Any:
        group = self.group
        for i in self.present("keys", self.members):
            group.take_keys(i, self.members[i].public_keys())
        group.check_enough(group.keys, "sent keys")
        for i in self.present("shares", group.keys):
            sealed = self.members[i].share(i, group.keys, group.threshold)
            group.take_shares(i, sealed)
        group.check_enough(group.sealed, "shared")
        for i in self.present("masked", group.sealed):
            masked = self.members[i].mask(data[i - 1].copy(), group.sealed_for(i))
            self.masked[i] = masked.copy()
            group.take_masked(i, masked)
        group.check_enough(group.survivors, "sent a vector")
        for i in self.present("answer", group.survivors):
            group.take_answer(i, self.members[i].answer(group.survivors))
        return group.unmask()


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


@pytest.mark.parametrize(
    ("clients", "wanted", "sizes"),
    [
        (50, 10, [10] * 5),
        (14, 10, [7, 7]),
        (4, 10, [4]),
        (4, 3, [4]),
        (11, 3, [4, 4, 3]),
        (2, 3, []),
        (0, 3, []),
    ],
)
def test_groups_are_balanced_and_never_under_three(
    clients: Any, wanted: Any, sizes: Any
) -> None:
    assert group_sizes(clients, wanted) == sizes


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 10, 11, 39])
@pytest.mark.parametrize("share", [0.51, 0.6, 2 / 3, 1.0])
def test_the_threshold_is_above_half_and_never_under_three(
    size: Any, share: Any
) -> None:
    threshold = group_threshold(size, share)
    assert 3 <= threshold <= size
    assert threshold > size / 2
    assert threshold >= share * size - 1e-6


def uniform_bytes(values: Any) -> bool:
    """Return whether the bytes of some integers look uniform, at every place."""
    limit = chi2.isf(LEVEL / 8, 255)
    for place in values.view(np.uint8).reshape(-1, 8).T:
        counts = np.bincount(place, minlength=256)
        expected = len(place) / 256
        if float(((counts - expected) ** 2).sum() / expected) > limit:
            return False
    return True


def masks_of_one_client(attempts: Any, length: Any) -> Any:
    """Return what a client with the same small vector sends in several attempts."""
    group_size, sent = 3, []
    for _ in range(attempts):
        group = Group("abc", 3, length)
        members = {i: Member(group.attempt) for i in group.clients}
        for i, member in members.items():
            group.take_keys(i, member.public_keys())
        for i, member in members.items():
            group.take_shares(i, member.share(i, group.keys, group_size))
        vector = np.arange(length, dtype=np.uint64) % np.uint64(3)
        sent.append(members[2].mask(vector, group.sealed_for(2)))
    return sent


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
    session = Session(5, 3)
    group, members = session.group, session.members
    data = vectors(5)
    for i, member in members.items():
        group.take_keys(i, member.public_keys())
    for i, member in members.items():
        group.take_shares(i, member.share(i, group.keys, 3))
    sent = {
        i: m.mask(data[i - 1].copy(), group.sealed_for(i)) for i, m in members.items()
    }
    late = sent.pop(2)
    for i, vector in sent.items():
        group.take_masked(i, vector)
    for i in group.survivors:
        group.take_answer(i, members[i].answer(group.survivors))
    assert np.array_equal(group.unmask(), data[[0, 2, 3, 4]].sum(axis=0))
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
    seen = b"".join(
        [
            *(k.sealing + k.masking for k in group.keys.values()),
            *itertools.chain.from_iterable(s.values() for s in group.sealed.values()),
            *(
                b"".join([*a.seed_shares.values(), *a.key_shares.values()])
                for a in group.answers.values()
            ),
        ]
    )
    for member in session.members.values():
        for secret in (member.seed, member.sealing_key, member.masking_key):
            assert secret not in seen


def stage_two(size: int = 4) -> Any:
    group = Group([str(i) for i in range(size)], 3, LENGTH)
    members = {i: Member(group.attempt) for i in group.clients}
    for i, member in members.items():
        group.take_keys(i, member.public_keys())
    return group, members


def test_a_member_takes_each_step_once() -> None:
    group, members = stage_two()
    for i, member in members.items():
        group.take_shares(i, member.share(i, group.keys, 3))
    with pytest.raises(ValueError, match="shared once per attempt"):
        members[1].share(1, group.keys, 3)
    members[1].mask(vectors(1)[0], group.sealed_for(1))
    with pytest.raises(ValueError, match="masked once"):
        members[1].mask(vectors(1)[0], group.sealed_for(1))


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_a_member_refuses_a_threshold_that_is_too_low_or_too_high(
    threshold: Any,
) -> None:
    group, members = stage_two()
    with pytest.raises(ValueError, match="above half of the 4 members"):
        members[1].share(1, group.keys, threshold)


def test_a_member_refuses_a_group_of_copies_or_without_itself() -> None:
    group, members = stage_two()
    with pytest.raises(ValueError, match="must differ"):
        members[1].share(1, dict.fromkeys(group.keys, group.keys[1]), 3)
    with pytest.raises(ValueError, match="this member's own"):
        members[1].share(2, group.keys, 3)


@pytest.mark.parametrize("survivors", [[1, 2], [2, 3, 4], [1, 2, 3, 9]])
def test_a_member_refuses_to_unmask_a_sum_of_few_or_of_strangers(
    survivors: Any,
) -> None:
    group, members = stage_two()
    for i, member in members.items():
        group.take_shares(i, member.share(i, group.keys, 3))
    members[1].mask(vectors(1)[0], group.sealed_for(1))
    with pytest.raises(ValueError, match=r"at least, got 2|Survivors must be members"):
        members[1].answer(survivors)


def test_an_answer_never_holds_both_secrets_of_a_member() -> None:
    with pytest.raises(ValueError, match="both secrets"):
        UnmaskAnswer({1: bytes(33)}, {1: bytes(33)})


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
    group = session.group
    answer = group.answers[1]
    answer.key_shares[2] = bytes(33)
    with pytest.raises(GroupFailed, match="do not belong together"):
        group.unmask()


def test_keys_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, got"):
        PublicKeys(b"short", bytes(32))
