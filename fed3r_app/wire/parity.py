"""What a machine makes of a built-in picture, beside what it sends; no torch.

The picture and its features are ``features.parity``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fed3r_app.wire import RecordError
from fed3r_app.wire.validation import read_number, shown

# A record beside the arrays of a training request, and of its reply.
PARITY = "parity"
_VALUES, _SOFTWARE = "parity", "software"
_LONGEST_TEXT, _MOST_VALUES = 200, 1000
# Largest difference, relative to the norm, by the dtype of the run. With MobileNetV2
# the kernels of two libraries differ by 2e-6 in float32 and by 5e-3 to 8e-3 in
# bfloat16; one dtype differs from the other by 0.1.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Parity:
    """Some features of the picture, and what they were made with."""

    values: tuple[float, ...]
    software: str  # for people

    def difference(self, other: Parity) -> float:
        """Return how far another's features are from these, relative to their norm."""
        mine, others = np.array(self.values), np.array(other.values)
        if mine.shape != others.shape:
            return math.inf
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.linalg.norm(mine - others) / np.linalg.norm(mine))


@dataclass(frozen=True)
class ParityCheck:
    """What the server makes of the picture: a client must make the same of it."""

    own: Parity
    dtype: str  # of the run's features

    def ask(self, content: RecordDict) -> None:
        """Have a training request ask for a client's features of the picture."""
        content[PARITY] = ConfigRecord({"wanted": True})

    def check_reply(self, content: RecordDict) -> None:
        """Raise RecordError unless a reply to such a request goes with the server."""
        self.check(read_parity(content.config_records.get(PARITY, ConfigRecord())))

    def check(self, other: Parity | None) -> None:
        """Raise RecordError unless a client's features go with the server's."""
        if other is None:
            raise RecordError("its features of the built-in picture are not there.")
        difference, most = self.own.difference(other), _TOLERANCES[self.dtype]
        if not difference <= most:  # also for NaN
            raise RecordError(
                f"its features of the built-in picture must be within {most:g} of the "
                f"server's, got {difference:.2g}. It runs {other.software}; the server "
                f"runs {self.own.software}. Has it the same weights and packages?"
            )


def add_parity(config: ConfigRecord, parity: Parity | None) -> None:
    """Put a client's features of the picture into a record of its reply."""
    if parity is not None:
        config[_VALUES], config[_SOFTWARE] = list(parity.values), parity.software


def read_parity(config: ConfigRecord) -> Parity | None:
    """Return a client's features of the picture, where its reply has them."""
    values, software = config.get(_VALUES), config.get(_SOFTWARE)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) > _MOST_VALUES:
        raise RecordError(
            f"{_VALUES} must be {_MOST_VALUES} numbers at most, got {shown(values)}."
        )
    numbers = tuple(read_number({_VALUES: v}, _VALUES, -math.inf) for v in values)
    text = software[:_LONGEST_TEXT] if isinstance(software, str) else ""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return Parity(numbers, printable)
