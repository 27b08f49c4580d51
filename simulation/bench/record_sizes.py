"""Bytes of a statistics record as a function of n and C_k, checked on real records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from flwr.app import RecordDict

from fed3r_app.wire import count_bytes, pack_statistics
from fed3r_app.wire.layout import Header


@dataclass(frozen=True)
class Upload:
    """A form and a type of the numbers: ``upload`` and ``upload-dtype``."""

    form: str
    dtype: str

    @property
    def name(self) -> str:
        """The upload in words."""
        return f"{self.form} {self.dtype}"

    def record_bytes(self, d: int, num_classes: int, n: int, present: int) -> int:
        """Return the serialised bytes of n images of C_k classes in d features."""
        return self._payload(d, num_classes, n, present) + self._framing()

    def total_bytes(
        self, d: int, num_classes: int, clients: Iterable[tuple[int, int]]
    ) -> int:
        """Return the bytes of clients with (n, C_k) each."""
        return sum(
            number * self.record_bytes(d, num_classes, n, present)
            for (n, present), number in Counter(clients).items()
        )

    def real_bytes(self, d: int, num_classes: int, n: int, present: int) -> int:
        """Return the serialised bytes of a record that is really made."""
        random = torch.Generator().manual_seed(n)
        Z = torch.randn(n, d, generator=random)
        y = torch.arange(n) % present
        record = pack_statistics(Z, y, num_classes, self.form, self.dtype)
        return count_bytes(RecordDict({"arrays": record}))

    def _payload(self, d: int, num_classes: int, n: int, present: int) -> int:
        rank = min(n, d) if self.form == "factor" else 0
        header = Header(self.form, self.dtype, d, num_classes, n, rank, present)
        arrays = header.layout().values()
        return sum(prod(shape) * np.dtype(dtype).itemsize for dtype, shape in arrays)

    @lru_cache(maxsize=16)  # noqa: B019 - a handful of values, kept for good
    def _framing(self) -> int:
        """Return the bytes around the numbers: names, types, the header."""
        return self.real_bytes(8, 4, 3, 2) - self._payload(8, 4, 3, 2)


UPLOADS = (
    Upload("dense", "float32"),
    Upload("packed", "float32"),
    Upload("factor", "float64"),
    Upload("factor", "float32"),
    Upload("factor", "float16"),
)
