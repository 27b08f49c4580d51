"""The layout of a statistics record: names, order, dtypes and shapes of its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.core.names import DTYPES, FORMS
from fed3r_app.core.statistics import packed_size
from fed3r_app.wire import RecordError
from fed3r_app.wire.validation import (
    MAX_SAMPLES,
    MOST_CLASSES,
    MOST_FEATURES,
    AnyArray,
)

VERSION = 1
# The other arrays are of the header's dtype.
_INTEGERS = ("classes", "counts", "pivots")


@dataclass(frozen=True)
class Header:
    """What a record says of itself; see ``fed3r_app.wire`` for the symbols."""

    form: str
    dtype: str
    d: int
    num_classes: int
    n: int
    rank: int
    num_present: int

    def array(self) -> NDArray[np.int64]:
        """Return the header as it travels."""
        codes = (FORMS.index(self.form), DTYPES.index(self.dtype))
        sizes = (self.d, self.num_classes, self.n, self.rank, self.num_present)
        return np.array([VERSION, *codes, *sizes], dtype=np.int64)

    @classmethod
    def parse(cls, array: AnyArray) -> Header:
        """Return a header that arrived, or raise RecordError."""
        if array.shape != (8,) or array.dtype != np.int64:
            raise RecordError(
                f"header must be 8 int64, got {array.dtype} of shape {array.shape}."
            )
        version, form, dtype, d, num_classes, n, rank, num_present = map(int, array)
        if version != VERSION:
            raise RecordError(
                f"Statistics must be of version {VERSION}, got {version}. Do server "
                "and clients run the same release?"
            )
        for name, code, known in (("form", form, FORMS), ("dtype", dtype, DTYPES)):
            if code not in range(len(known)):
                raise RecordError(f"{name} must be 0 to {len(known) - 1}, got {code}.")
        header = cls(FORMS[form], DTYPES[dtype], d, num_classes, n, rank, num_present)
        header._check_sizes()
        return header

    def _check_sizes(self) -> None:
        for name, size, most in (
            ("d", self.d, MOST_FEATURES),
            ("C", self.num_classes, MOST_CLASSES),
        ):
            if not 1 <= size <= most:
                raise RecordError(f"{name} must be 1 to {most}, got {size}.")
        if not 0 <= self.n <= MAX_SAMPLES:
            raise RecordError(f"n must be 0 to {MAX_SAMPLES}, got {self.n}.")
        if not 0 <= self.num_present <= min(self.n, self.num_classes):
            raise RecordError(
                f"C_k must be 0 to min(n, C) = {min(self.n, self.num_classes)}, got "
                f"{self.num_present}."
            )
        limit = min(self.n, self.d) if self.form == "factor" else 0
        if not 0 <= self.rank <= limit:
            raise RecordError(f"r must be 0 to {limit}, got {self.rank}.")
        if self.form != "factor" and self.dtype == "float16":
            raise RecordError(f"float16 goes with factors only, got {self.form}.")

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array after the header, in order."""
        d, rank, present = self.d, self.rank, (self.num_present,)
        shapes: dict[str, tuple[int, ...]] = {"classes": present, "counts": present}
        if self.form == "factor":
            shapes |= {"pivots": (rank,), "R": (packed_size(rank, d),)}
            shapes["S"] = (rank, *present)
        elif self.form == "packed":
            shapes |= {"A": (packed_size(d, d),), "b": (d, *present)}
        else:
            shapes = {"counts": (self.num_classes,), "A": (d, d)}
            shapes["b"] = (d, self.num_classes)
        return {
            name: ("int64" if name in _INTEGERS else self.dtype, shape)
            for name, shape in shapes.items()
        }


def name_arrays(arrays: Sequence[AnyArray]) -> ArrayRecord:
    """Return the record of statistics arrays that come as a list.

    A NumPyClient returns a list; the header at its front gives the names.
    """
    if not arrays:
        raise RecordError("A statistics record needs a header, got no arrays.")
    header = Header.parse(np.asarray(arrays[0]))
    names = ["header", *header.layout()]
    if len(arrays) != len(names):
        raise RecordError(
            f"A {header.form} record must hold {names}, got {len(arrays)} arrays."
        )
    return keep_names(names, arrays)


def keep_names(names: Iterable[str], arrays: Iterable[AnyArray]) -> ArrayRecord:
    """Return the record of arrays that come in the order of their names."""
    pairs = zip(names, arrays, strict=True)
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in pairs})


def pivots_first(pivots: Tensor, d: int) -> Tensor:
    """Return all d columns, the pivots first and the others in order."""
    others = torch.ones(d, dtype=torch.bool)
    others[pivots] = False
    return torch.cat([pivots, others.nonzero().flatten()])
