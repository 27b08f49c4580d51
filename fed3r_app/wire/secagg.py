"""The records of secure aggregation: four requests, their replies, a client's state.

Everything of the protocol is in a config record named ``secagg``; the masked vector is
an array. Requests for keys and for the vector also carry the ``config`` of a plain one,
the reply with keys one that says how the node sees a built-in picture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fed3r_app.privacy.secagg import Member, PublicKeys, UnmaskAnswer
from fed3r_app.wire import RecordError
from fed3r_app.wire.validation import read_array, shown

SECAGG = "secagg"
# Of a group, and of the bytes of a key or a name.
_LONGEST = 2_000
_T = TypeVar("_T")
Value = str | int | bytes | list[int] | list[bytes]
Values = dict[str, Value]
# What of a client's state is one value, by attribute of ``Member``.
_MEMBER = {
    name: kind
    for name, kind in get_type_hints(Member).items()
    if kind in (str, bytes, int, bool)
}


def ask_keys(attempt: str, config: ConfigRecord) -> RecordDict:
    """Return the request for keys, with the ``config`` of a plain one."""
    content = _content(attempt=attempt)
    content["config"] = config
    return content


def read_attempt(content: RecordDict) -> str:
    """Return which attempt a request belongs to."""
    return _read(_record(content), "attempt", str)


def pack_keys(keys: PublicKeys) -> RecordDict:
    """Return the reply with a member's public keys."""
    return _content(sealing=keys.sealing, masking=keys.masking)


def read_keys(content: RecordDict) -> PublicKeys:
    """Return the public keys of a reply."""
    record = _record(content)
    return PublicKeys(_read(record, "sealing", bytes), _read(record, "masking", bytes))


def pack_group(
    attempt: str, index: int, keys: Mapping[int, PublicKeys], threshold: int
) -> RecordDict:
    """Return the request for shares: who is in the group, and the reader's place."""
    place: Values = {"attempt": attempt, "index": index, "threshold": threshold}
    return _content(**place, **_key_lists(keys))


def read_group(content: RecordDict) -> tuple[int, dict[int, PublicKeys], int]:
    """Return the reader's place, all members' keys and the threshold."""
    record = _record(content)
    index, threshold = _read(record, "index", int), _read(record, "threshold", int)
    return index, _read_keys(record), threshold


def pack_sealed(sealed: Mapping[int, bytes]) -> RecordDict:
    """Return the reply with sealed shares, by receiver."""
    return _content(**_lists("members", "sealed", sealed))


def read_sealed(content: RecordDict) -> dict[int, bytes]:
    """Return sealed shares, by receiver in a reply and by sender in a request."""
    return _read_lists(_record(content), "members", "sealed")


def ask_masked(
    attempt: str, sealed: Mapping[int, bytes], config: ConfigRecord
) -> RecordDict:
    """Return the request for a masked vector."""
    content = _content(attempt=attempt, **_lists("members", "sealed", sealed))
    content["config"] = config
    return content


def pack_masked(vector: NDArray[np.uint64]) -> RecordDict:
    """Return the reply with a masked vector, and nothing else."""
    return RecordDict({"arrays": ArrayRecord({"masked": Array(vector)})})


def read_masked(content: RecordDict) -> NDArray[np.uint64]:
    """Return the masked vector of a reply."""
    record = content.array_records.get("arrays", ArrayRecord())
    if set(record) != {"masked"}:
        raise RecordError(
            f"A reply must hold the array 'masked', got {sorted(record)}."
        )
    vector = read_array(record, "masked")
    if vector.dtype != np.uint64 or vector.ndim != 1:
        raise RecordError(f"masked must be uint64 (m,), got {vector.dtype}.")
    return cast("NDArray[np.uint64]", vector)


def pack_survivors(attempt: str, survivors: Collection[int]) -> RecordDict:
    """Return the last request: whose vectors are in the sum."""
    return _content(attempt=attempt, survivors=sorted(survivors))


def read_survivors(content: RecordDict) -> list[int]:
    """Return whose vectors are in the sum."""
    return _read_list(_record(content), "survivors", int)


def pack_answer(answer: UnmaskAnswer) -> RecordDict:
    """Return the reply to the last request."""
    return _content(
        **_lists("survivors", "seed-shares", answer.seed_shares),
        **_lists("dropped", "key-shares", answer.key_shares),
    )


def read_answer(content: RecordDict) -> UnmaskAnswer:
    """Return the shares of a reply."""
    record = _record(content)
    return UnmaskAnswer(
        _read_lists(record, "survivors", "seed-shares"),
        _read_lists(record, "dropped", "key-shares"),
    )


def pack_member(member: Member) -> ConfigRecord:
    """Return a client's state between two requests."""
    plain = {_key(name): getattr(member, name) for name in _MEMBER}
    received = _lists("senders", "received", member.received)
    return ConfigRecord({**plain, **_key_lists(member.keys), **received})


def read_member(record: ConfigRecord) -> Member:
    """Return the client's state of ``pack_member``."""
    plain: dict[str, Any] = {
        name: _read(record, _key(name), kind) for name, kind in _MEMBER.items()
    }
    received = _read_lists(record, "senders", "received")
    return Member(**plain, keys=_read_keys(record), received=received)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _content(**values: Value) -> RecordDict:
    return RecordDict({SECAGG: ConfigRecord(values)})  # type: ignore[arg-type]


def _lists(names: str, values: str, items: Mapping[int, bytes]) -> Values:
    if not items:  # Flower does not keep the type of an empty list
        return {}
    return {names: list(items), values: list(items.values())}


def _key_lists(keys: Mapping[int, PublicKeys]) -> Values:
    sealing = {member: pair.sealing for member, pair in keys.items()}
    masking = {member: pair.masking for member, pair in keys.items()}
    return _lists("members", "sealing", sealing) | _lists("members", "masking", masking)


def _record(content: RecordDict) -> ConfigRecord:
    record = content.config_records.get(SECAGG)
    if record is None:
        raise RecordError(f"Record {SECAGG!r} is missing, got {sorted(content)}.")
    return record


def _read(record: ConfigRecord, name: str, kind: type[_T]) -> _T:
    value = record.get(name)
    if type(value) is not kind:
        raise RecordError(
            f"{name} must be {kind.__name__}, got {type(value).__name__}."
        )
    if isinstance(value, str | bytes | list) and len(value) > _LONGEST:
        raise RecordError(f"{name} must be of {_LONGEST} at most, got {shown(value)}.")
    return value


def _read_list(record: ConfigRecord, name: str, kind: type[_T]) -> list[_T]:
    values = _read(record, name, list) if name in record else []
    if any(type(value) is not kind for value in values):
        raise RecordError(f"{name} must be a list of {kind.__name__}.")
    return values


def _read_lists(record: ConfigRecord, names: str, values: str) -> dict[int, bytes]:
    members, items = _read_list(record, names, int), _read_list(record, values, bytes)
    if len(set(members)) < len(members) or len(members) != len(items):
        raise RecordError(f"{names} must differ, with one of {values} each.")
    return dict(zip(members, items, strict=True))


def _read_keys(record: ConfigRecord) -> dict[int, PublicKeys]:
    sealing = _read_lists(record, "members", "sealing")
    masking = _read_lists(record, "members", "masking")
    return {member: PublicKeys(sealing[member], masking[member]) for member in sealing}
