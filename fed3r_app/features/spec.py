"""Which backbone, with which weights, reading images how: one value, without torch.

``fingerprint`` is what features depend on. Contribution digests and cache keys spell
the same in the words of version 0.1, so that what was written then stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fed3r_app.core.names import LARGEST_SIDE
from fed3r_app.data.reading import RANGE, RECIPE_VERSION, Reading

# Of `weights`; anything else is a file or a folder.
WEIGHTS = ("auto", "packaged", "torchvision", "random")
_JOIN = "+"  # of the names of several backbones, and of their weights


@dataclass(frozen=True)
class BackboneSpec:
    """A backbone by name.

    Parameters
    ----------
    name : str
        `backbone` in the run config; several, joined by "+", give the features of all.
    weights : str
        `weights` in the run config: one of WEIGHTS, or a file or folder with them.
    image_size : int
        `image-size` in the run config; 0 for the size that the weights want.
    recipe : int
        Version of how images are read (see ``data.reading``) and preprocessed. Another
        way gets another number, and each stays in the code for what was made with it.
    digest : str
        Names the weights exactly; "" before they were looked at.
    intensity : str
        `intensity` in the run config, a part of how images are read.
    """

    name: str
    weights: str = "auto"
    image_size: int = 0
    recipe: int = RECIPE_VERSION
    digest: str = ""
    intensity: str = RANGE

    def __post_init__(self) -> None:
        if not 0 <= self.image_size <= LARGEST_SIDE:
            raise ValueError(
                f"image-size must be from 0 to {LARGEST_SIDE}, got {self.image_size!r}."
            )
        if self.recipe not in range(1, RECIPE_VERSION + 1):
            raise ValueError(
                f"The recipe of the features must be at most {RECIPE_VERSION}, got "
                f"{self.recipe}. Was it written by a newer version?"
            )

    @property
    def reading(self) -> Reading:
        """How images are read."""
        return Reading(self.recipe, self.intensity)

    def parts(self) -> tuple[BackboneSpec, ...]:
        """Return the backbones that this one is made of; itself where it is one.

        A word for the weights is meant for all; files are joined as the names are.
        """
        names = self.name.split(_JOIN)
        if len(names) == 1:
            return (self,)
        weights = self.weights.split(_JOIN)
        if self.weights in WEIGHTS:
            weights *= len(names)
        if len(weights) != len(names):
            raise ValueError(
                f"weights must be one of {', '.join(WEIGHTS)}, or one for each of the "
                f"{len(names)} backbones, joined by +, got {self.weights!r}."
            )
        pairs = zip(names, weights, strict=True)
        return tuple(replace(self, name=n, weights=w, digest="") for n, w in pairs)

    def fingerprint(self) -> dict[str, str | int]:
        """Return what the features of an image depend on; equal means the same.

        Not the name of the weights: a file may move, and its digest says what is in it.
        """
        # Named where it is not as ever: files of earlier versions lack it.
        intensity = {} if self.intensity == RANGE else {"intensity": self.intensity}
        return {
            "backbone": self.name,
            "image-size": self.image_size,
            "recipe": self.recipe,
            "weights-digest": self.digest,
            **intensity,
        }

    @classmethod
    def of_fingerprint(cls, values: Mapping[str, object], weights: str) -> BackboneSpec:
        """Return the backbone with a fingerprint, whose weights have that name."""
        return cls(
            name=str(values["backbone"]),
            weights=weights,
            image_size=int(str(values["image-size"])),
            recipe=int(str(values["recipe"])),
            digest=str(values["weights-digest"]),
            intensity=str(values.get("intensity") or RANGE),
        )

    def check_same(self, found: BackboneSpec) -> None:
        """Raise unless a backbone that was loaded is this one, to the last weight."""
        if found.fingerprint() != self.fingerprint():
            raise ValueError(
                f"The weights {self.weights!r} of {self.name} must be those that the "
                f"model was made with (digest {self.digest[:12]}), got others "
                f"({found.digest[:12]})."
            )

    def without_digest(self) -> BackboneSpec:
        """Return what to load: the digest is found out anew."""
        return replace(self, digest="")
