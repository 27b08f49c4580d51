"""Pretrained networks that turn images into features, by name.

torchvision takes seconds to import and a client whose features are all in the cache
needs neither it nor the weights: both are loaded when `Backbone.module` is first read
(and torchvision not even then for the packaged network).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor, nn

from fed3r_app.features import weights as pretrained
from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.spec import BackboneSpec

Build = Callable[[], nn.Module]
_LOG = logging.getLogger(__name__)
_DEFAULT_SIZE = 224
_NO_WEIGHTS = "none"  # in the place of a digest
# Number and range of features, known without building the network: its last activation
# is a ReLU6, and means stay within its range.
_KNOWN = {"mobilenet_v2": (1280, (0.0, 6.0))}


@dataclass(frozen=True, eq=False)  # hashed as an object: modules don't compare
class Backbone:
    """A frozen feature extractor phi: image -> R^d."""

    spec: BackboneSpec  # name, weights, recipe and digest
    preprocess: Preprocess  # how an image becomes the input
    build: Build  # makes the network, without its classifier
    known_dim: int | None = None  # d, where known without building the network
    # Smallest and largest feature, where known; it holds for any weights.
    feature_range: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """`backbone` in the run config."""
        return self.spec.name

    @property
    def digest(self) -> str:
        """Hex digest that names the weights exactly."""
        return self.spec.digest

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
        _check_size(self.name, module, self.preprocess)
        return module

    @cached_property
    def dim(self) -> int:
        """Number of features d."""
        if self.known_dim is not None:
            return self.known_dim
        return _trial(self.module, self.preprocess).shape[1]


@lru_cache(maxsize=8)
def load_backbone(spec: BackboneSpec, feature_dim: int | None = None) -> Backbone:
    """Return a backbone by name; nothing heavy is loaded yet.

    The name is "pixels" (the grey values themselves, d = image_size^2, no weights),
    "none" (the samples are features, d = feature_dim) or a classification model of
    torchvision. The weights are "packaged" (mobilenet_v2 only), "torchvision" (its
    default weights, downloaded), "random" (for tests) or a file with a state dict. The
    image size is the side of the square that the network sees.
    """
    if spec.name == "pixels":
        return _pixels(spec)
    if spec.name == "none":
        return _no_backbone(spec, feature_dim)
    name, image_size = spec.name, spec.image_size
    pretrained.check_name(name)
    if spec.source == "torchvision":
        preprocess, digest = pretrained.torchvision_preset(name, image_size)
        build: Build = partial(pretrained.build_torchvision, name)
    else:
        size = image_size or _DEFAULT_SIZE
        preprocess = Preprocess(size, size)
        digest, build = _weights_at_hand(spec)
    known = _KNOWN.get(name, (None, None))
    preprocess = replace(preprocess, reading=spec.reading)
    return Backbone(replace(spec, digest=digest), preprocess, build, *known)


def _pixels(spec: BackboneSpec) -> Backbone:
    """Return the backbone whose features are the grey values in [0, 1]."""
    size = spec.image_size
    if size == 0:
        raise ValueError(
            'image-size must be > 0 when backbone = "pixels", got 0. '
            "There are no weights to take a size from."
        )
    grey = {"mode": "L", "mean": (0.0,), "std": (1.0,)}
    preprocess = Preprocess(size, size, **grey, reading=spec.reading)  # type: ignore[arg-type]
    spec = replace(spec, digest=_NO_WEIGHTS)
    return Backbone(spec, preprocess, nn.Flatten, size * size, (0.0, 1.0))


def _no_backbone(spec: BackboneSpec, feature_dim: int | None) -> Backbone:
    """Return the backbone of samples that are features already."""
    if feature_dim is None:
        raise ValueError(
            'backbone = "none" must go with samples that are features, got images.'
        )
    spec = replace(spec, digest=_NO_WEIGHTS)
    return Backbone(spec, Preprocess(1, 1), nn.Identity, feature_dim)


def _weights_at_hand(spec: BackboneSpec) -> tuple[str, Build]:
    """Return the digest of weights that need no download, and what builds them."""
    name = spec.name
    if spec.source == "packaged":
        if name != "mobilenet_v2":
            raise ValueError(
                'weights must be "torchvision", "random" or a file when backbone = '
                f'{name!r}, got "packaged": only mobilenet_v2 comes packaged.'
            )
        return pretrained.PACKAGED_DIGEST, pretrained.build_packaged
    if spec.source == "random":
        _LOG.warning(
            'weights = "random" is for tests: the features of an untrained %s '
            "are close to useless.",
            name,
        )
        return pretrained.random_digest(name), partial(pretrained.build_random, name)
    path = pretrained.existing_file(spec.weights)
    return pretrained.file_digest(path), partial(pretrained.build_file, name, path)


def _trial(module: nn.Module, preprocess: Preprocess) -> Tensor:
    """Return the features (1, d) of a black image."""
    size = preprocess.crop
    with torch.inference_mode():
        features: Tensor = module(torch.zeros(1, preprocess.channels, size, size))
    return features


def _check_size(name: str, module: nn.Module, preprocess: Preprocess) -> None:
    """Refuse an image size that the network cannot take."""
    try:
        _trial(module, preprocess)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"image-size must suit backbone = {name!r}, got {preprocess.crop}: {reason}"
        ) from error


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
