"""The classes of a run whose clients have images, and so classes, of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fed3r_app.words import first_names


@dataclass(frozen=True)
class LabelSpace:
    """All classes, in the order of their numbers."""

    names: tuple[str, ...]

    @classmethod
    def union(cls, class_names: Iterable[Sequence[str]]) -> LabelSpace:
        """Return the classes that any client has, sorted by name."""
        return cls(tuple(sorted({name for names in class_names for name in names})))

    def refusal(self, owner: str, class_names: Sequence[str]) -> str | None:
        """Return why a client's classes don't fit, or None if they do."""
        unknown = sorted(set(class_names).difference(self.names))
        if not unknown:
            return None
        known = first_names(self.names, 10)
        return (
            f"{owner}: the classes must be among the run's, {known}; got "
            f"{', '.join(map(repr, unknown[:10]))}. Rename the class, or begin a run "
            "whose labels name it."
        )

    def numbers(self, owner: str, class_names: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each of a client's classes, or raise ValueError."""
        if refusal := self.refusal(owner, class_names):
            raise ValueError(refusal)
        number = {name: index for index, name in enumerate(self.names)}
        return np.array([number[name] for name in class_names], dtype=np.int64)
