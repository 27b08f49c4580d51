"""What names a contribution: a digest that travels beside the statistics."""

from __future__ import annotations

import re

from flwr.app import ConfigRecord, RecordDict

from fed3r_app.wire.layout import RecordError

_RECORD, _KEY = "config", "digest"


def add_digest(content: RecordDict, digest: str) -> None:
    """Put the digest of what went into a reply's statistics beside them."""
    content[_RECORD] = ConfigRecord({_KEY: digest})


def read_digest(content: RecordDict) -> str:
    """Return the digest in a reply's records, or raise RecordError."""
    digest = content.config_records.get(_RECORD, ConfigRecord()).get(_KEY)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise RecordError(
            f"digest must be 64 hexadecimal digits, got {str(digest)[:80]!r}."
        )
    return digest
