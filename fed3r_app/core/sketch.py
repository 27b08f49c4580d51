"""Sketches: by which a contribution is known again that was not kept itself.

A sketch holds the class counts and the values of two forms with random vectors that
its owner keeps to itself, sixteen times each:

    v'A v   and   u'b w = sum_c w_c u'b_c

Two contributions that differ anywhere differ in these, but for a chance of 2^-32 in
each. Who does not know the vectors can't change A or b and keep the values; and from
32 numbers nobody gets back A or b. w_c belongs to the name of a class, so that classes
may be numbered anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fed3r_app.core.statistics import Contribution

NUM_FORMS = 16
SECRET_BYTES = 32
# Features that are made again with other threads or batches differ by 1e-6 of their
# size, and so the forms of 150 images by 5e-7; another processor may differ by more. In
# float16 some entries round the other way, by an eps: the forms differed by 5e-5, with
# fewer images by more. A client that stays below moves the statistics by no more.
_LEAST_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Sketch:
    """What is kept of a contribution.

    Parameters
    ----------
    counts : mapping
        Samples of each class that has any, by its name.
    of_A, of_b : tuple of float
        The sixteen values of v'A v, and those of u'b w.
    """

    counts: Mapping[str, int]
    of_A: tuple[float, ...]
    of_b: tuple[float, ...]

    def difference(self, other: Sketch, dtype: torch.dtype) -> str | None:
        """Return in what two sketches differ by more than rounding, or None.

        Both contributions have travelled in ``dtype``.
        """
        if self.counts != other.counts:
            return "class counts"
        tolerance = max(_LEAST_TOLERANCE, torch.finfo(dtype).eps)
        for name, one, two in (
            ("A", self.of_A, other.of_A),
            ("b", self.of_b, other.of_b),
        ):
            error = np.abs(np.subtract(one, two)).max()
            if not error <= tolerance * np.abs(one).max():  # so that NaN differs, too
                return name
        return None


class SketchVectors:
    """The random vectors of a run, made from its secret on any machine alike."""

    def __init__(self, secret: bytes, d: int) -> None:
        self._secret = secret
        self._v, self._u = (self._uniform(name, d, NUM_FORMS) for name in ("v", "u"))
        self._w: dict[str, Tensor] = {}

    def sketch(self, contribution: Contribution, class_names: Sequence[str]) -> Sketch:
        """Return the sketch of a contribution whose labels index ``class_names``."""
        names = [class_names[c] for c in contribution.classes.tolist()]
        of_b = contribution.class_sums @ self._u  # (C_k, 16)
        if names:
            of_b = of_b * torch.stack([self._of_class(name) for name in names])
        counts = contribution.class_counts.tolist()
        return Sketch(
            dict(zip(names, counts, strict=True)),
            tuple(contribution.quadratic_forms(self._v).tolist()),
            tuple(of_b.sum(dim=0).tolist()),
        )

    def _of_class(self, name: str) -> Tensor:
        """Return w_c (16,) of a class."""
        if name not in self._w:
            self._w[name] = self._uniform(f"w {name}", 1, NUM_FORMS)[0]
        return self._w[name]

    def _uniform(self, name: str, rows: int, columns: int) -> Tensor:
        """Return numbers in [-1, 1), float64 (rows, columns), that go by a name.

        Hashed, not from a generator of torch or NumPy: those change with versions.
        """
        seed = self._secret + name.encode(errors="replace")
        data = hashlib.shake_256(seed).digest(4 * rows * columns)
        numbers = np.frombuffer(data, dtype="<u4").reshape(rows, columns)
        return torch.from_numpy(numbers / 2.0**31 - 1)
