"""The records of secure aggregation: what is packed comes back, junk is refused."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.privacy.secagg import Member, PublicKeys, UnmaskAnswer
from fed3r_app.wire import RecordError
from fed3r_app.wire import secagg as secure

KEYS = {i: PublicKeys(bytes([i]) * 32, bytes([100 + i]) * 32) for i in (1, 2, 4)}
SHARES = {1: b"a" * 33, 4: b"b" * 33}


def test_what_is_packed_comes_back() -> None:
    assert secure.read_attempt(secure.ask_keys("x", ConfigRecord())) == "x"
    assert secure.read_keys(secure.pack_keys(KEYS[1])) == KEYS[1]
    assert secure.read_group(secure.pack_group("x", 2, KEYS, 3)) == (2, KEYS, 3)
    assert secure.read_sealed(secure.pack_sealed(SHARES)) == SHARES
    request = secure.ask_masked("x", SHARES, ConfigRecord({"k": 1}))
    assert secure.read_sealed(request) == SHARES
    assert request["config"] == ConfigRecord({"k": 1})
    assert secure.read_survivors(secure.pack_survivors("x", {4, 1})) == [1, 4]
    vector = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert np.array_equal(secure.read_masked(secure.pack_masked(vector)), vector)
    for dropped in ({}, {2: b"c" * 33}):
        answer = UnmaskAnswer(SHARES, dropped)
        assert secure.read_answer(secure.pack_answer(answer)) == answer


def test_a_member_comes_back_at_every_stage() -> None:
    members = {i: Member("x") for i in (1, 2, 3)}
    keys = {i: member.public_keys() for i, member in members.items()}
    assert secure.read_member(secure.pack_member(members[1])) == members[1]
    sealed = {i: member.share(i, keys, 3) for i, member in members.items()}
    assert secure.read_member(secure.pack_member(members[1])) == members[1]
    members[1].mask(np.zeros(3, dtype=np.uint64), {i: sealed[i][1] for i in (2, 3)})
    again = secure.read_member(secure.pack_member(members[1]))
    assert again == members[1]
    assert again.answer([1, 2, 3]) == members[1].answer([1, 2, 3])


def test_a_member_does_not_show_its_secrets() -> None:
    member = Member("x")
    for secret in (member.seed, member.masking_key, member.sealing_key):
        assert repr(secret) not in repr(member)


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"secagg": ConfigRecord()},
        {"secagg": ArrayRecord()},
        {"secagg": ConfigRecord({"sealing": "x" * 32, "masking": b"y" * 32})},
        {"secagg": ConfigRecord({"sealing": b"x", "masking": b"y" * 32})},
        {"secagg": ConfigRecord({"sealing": [b"x"], "masking": 1})},
    ],
)
def test_junk_in_the_place_of_keys_is_refused(records: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|must have|missing"):
        secure.read_keys(RecordDict(records))


@pytest.mark.parametrize(
    "values",
    [
        {"members": [1, 1], "sealed": [b"x", b"y"]},
        {"members": [1, 2], "sealed": [b"x"]},
        {"members": [1.0], "sealed": [b"x"]},
        {"members": [1], "sealed": ["x"]},
        {"members": 1, "sealed": [b"x"]},
    ],
)
def test_lists_that_do_not_fit_are_refused(values: Any) -> None:
    with pytest.raises(RecordError, match="must"):
        secure.read_sealed(RecordDict({"secagg": ConfigRecord(values)}))


@pytest.mark.parametrize(
    "record",
    [
        ArrayRecord(),
        ArrayRecord({"other": Array(np.zeros(3, dtype=np.uint64))}),
        ArrayRecord({"masked": Array(np.zeros(3))}),
        ArrayRecord({"masked": Array(np.zeros((3, 3), dtype=np.uint64))}),
        ArrayRecord({"masked": Array("uint64", (3,), "numpy.ndarray", b"junk")}),
    ],
)
def test_junk_in_the_place_of_a_vector_is_refused(record: Any) -> None:
    with pytest.raises(RecordError, match=r"must|can't be read"):
        secure.read_masked(RecordDict({"arrays": record}))


def test_an_answer_with_short_shares_is_refused() -> None:
    values: dict[str, Any] = {"survivors": [1], "seed-shares": [b"short"]}
    with pytest.raises(ValueError, match="33 bytes"):
        secure.read_answer(RecordDict({"secagg": ConfigRecord(values)}))
