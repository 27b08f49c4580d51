"""Pretrained networks that turn images into features, by name.

The libraries of the sources take seconds to import, and a client whose features are all
in the cache needs neither the network nor its weights: both are loaded when
`Backbone.module` is first read, wherever d and the digest are known without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module

import torch
from torch import Tensor, nn

from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources import __name__ as _SOURCES
from fed3r_app.features.sources import find_source
from fed3r_app.features.sources.network import Build, Network
from fed3r_app.features.spec import BackboneSpec
from fed3r_app.features.weights import text_digest

_NO_WEIGHTS = "none"  # in the place of a digest


@dataclass(frozen=True, eq=False)  # hashed as an object: modules don't compare
class Backbone:
    """A frozen feature extractor phi: image -> R^d."""

    spec: BackboneSpec  # name, weights, recipe and digest
    preprocess: Preprocess  # how an image becomes the input
    build: Build  # makes the network, without its classifier
    known_dim: int | None = None  # d, where known without building the network
    # Smallest and largest feature, where known; it holds for any weights.
    feature_range: tuple[float, float] | None = None
    # The backbones that this one joins, each with its preprocessing and network; this
    # one's own are then those of the first.
    joined: tuple[Backbone, ...] = ()

    @property
    def parts(self) -> tuple[Backbone, ...]:
        """The backbones whose features are those of this one, side by side."""
        return self.joined or (self,)

    @property
    def name(self) -> str:
        """`backbone` in the run config."""
        return self.spec.name

    @property
    def file_name(self) -> str:
        """The name as a part of a file's, with a digest where it leaves much open."""
        plain = re.sub(r"[^\w.-]+", "-", self.name)
        return plain if plain == self.name else f"{plain}-{self.digest[:12]}"

    @property
    def digest(self) -> str:
        """Hex digest that names the weights exactly."""
        return self.spec.digest

    @property
    def recipe(self) -> str:
        """The whole preprocessing as a text, part of digests."""
        return " + ".join(part.preprocess.description for part in self.parts)

    @property
    def has_weights(self) -> bool:
        """Whether there is a network: pixels and given features have none."""
        return self.digest != _NO_WEIGHTS

    @cached_property
    def module(self) -> nn.Module:
        """The network, (n, channels, s, s) -> (n, d): float32, eval mode, frozen.

        Features are taken from a copy made once. Training takes a copy too, and wraps
        the result in a Backbone with its own digest.
        """
        # Building draws initial weights; the caller's random numbers stay as they were.
        with torch.random.fork_rng(devices=[]):
            module = self.build()
        module.eval().requires_grad_(False)
        if self.has_weights:
            _check_features(self.name, module, self.preprocess)
        return module

    @cached_property
    def dim(self) -> int:
        """Number of features d."""
        if self.joined:
            return sum(part.dim for part in self.joined)
        if self.known_dim is not None:
            return self.known_dim
        return _trial(self.module, self.preprocess).shape[1]


@lru_cache(maxsize=8)
def load_backbone(spec: BackboneSpec, feature_dim: int | None = None) -> Backbone:
    """Return a backbone by name; its network is not built yet.

    The name is "pixels" (the grey values themselves, d = image_size^2, no weights),
    "none" (the samples are features, d = feature_dim), a network of a source (see
    ``sources``), or several of these joined by "+". The image size is the side of the
    square that the network sees.
    """
    parts = spec.parts()
    if len(parts) > 1:
        return _join(spec, tuple(load_backbone(part) for part in parts))
    if spec.name == "pixels":
        network = _pixels(spec.image_size)
    elif spec.name == "none":
        network = _given_features(feature_dim)
    else:
        source, name = find_source(spec.name)
        module = import_module(f"{_SOURCES}.{source.module}")
        network = module.load(spec, name)
    return Backbone(
        replace(spec, digest=network.digest),
        replace(network.preprocess, reading=spec.reading),
        network.build,
        network.known_dim,
        network.feature_range,
    )


def _join(spec: BackboneSpec, parts: tuple[Backbone, ...]) -> Backbone:
    """Return the backbone whose features are those of several, side by side."""
    ranges = [part.feature_range for part in parts if part.feature_range]
    bounds = [bound for one in ranges for bound in one]
    return replace(
        parts[0],
        spec=replace(spec, digest=text_digest(" ".join(p.digest for p in parts))),
        known_dim=None,
        feature_range=(
            (min(bounds), max(bounds)) if len(ranges) == len(parts) else None
        ),
        joined=parts,
    )


def _pixels(size: int) -> Network:
    """Return the backbone whose features are the grey values in [0, 1]."""
    if size == 0:
        raise ValueError(
            'image-size must be > 0 when backbone = "pixels", got 0. '
            "There are no weights to take a size from."
        )
    preprocess = Preprocess(size, size, mode="L", mean=(0.0,), std=(1.0,))
    return Network(_NO_WEIGHTS, preprocess, nn.Flatten, size * size, (0.0, 1.0))


def _given_features(feature_dim: int | None) -> Network:
    """Return the backbone of samples that are features already."""
    if feature_dim is None:
        raise ValueError(
            'backbone = "none" must go with samples that are features, got images.'
        )
    return Network(_NO_WEIGHTS, Preprocess(1, 1), nn.Identity, feature_dim)


def _trial(module: nn.Module, preprocess: Preprocess) -> Tensor:
    """Return the features (1, d) of a black image."""
    size = preprocess.crop
    with torch.inference_mode():
        features: Tensor = module(torch.zeros(1, preprocess.channels, size, size))
    return features


def _check_features(name: str, module: nn.Module, preprocess: Preprocess) -> None:
    """Refuse an image size that the network cannot take, and what is no feature."""
    try:
        features, again = _trial(module, preprocess), _trial(module, preprocess)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(
            f"image-size must suit backbone = {name!r}, got {preprocess.crop}: {reason}"
        ) from error
    if not isinstance(features, Tensor) or len(features) != 1 or features.ndim != 2:
        got = tuple(getattr(features, "shape", ())) or type(features).__name__
        raise ValueError(
            f"backbone = {name!r} must turn n images into features of shape (n, d), "
            f"got {got} for one."
        )
    if not torch.allclose(features, again, equal_nan=True):
        raise ValueError(
            f"backbone = {name!r} must make the same features of the same image each "
            "time, got others. Does it mask or drop parts at random?"
        )


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be auto, cpu, cuda or cuda:N with float64, got {name!r}: "
            f"{reason}"
        ) from None
    return device
