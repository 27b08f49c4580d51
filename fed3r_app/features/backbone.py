"""Pretrained networks that turn images into features, by name.

torchvision takes seconds to import and a client whose features are all in the cache
needs neither it nor the weights: both are loaded when `Backbone.module` is first read
(and torchvision not even then for the packaged network).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor, nn

from fed3r_app.features import weights as pretrained
from fed3r_app.features.preprocessing import Preprocess

Build = Callable[[], nn.Module]


_LOG = logging.getLogger(__name__)
_DEFAULT_SIZE = 224
# Known without building the network.
_KNOWN_DIMS = {"mobilenet_v2": 1280}


# Its last activation is a ReLU6, and means stay within its range.
_KNOWN_RANGES = {"mobilenet_v2": (0.0, 6.0)}


@dataclass(frozen=True, eq=False)  # hashed as an object: modules don't compare
class Backbone:
    """A frozen feature extractor phi: image -> R^d.

    Attributes
    ----------
    name : str
        `backbone` in the run config.
    weights : str
        `weights` in the run config.
    digest : str
        Hex digest that names the weights exactly.
    preprocess : Preprocess
        How an image becomes the input.
    build : callable
        Makes the network, without its classifier.
    known_dim : int or None
        d, where it is known without building the network.
    feature_range : (float, float) or None
        Smallest and largest feature, where known; it holds for any weights.
    """

    name: str
    weights: str
    digest: str
    preprocess: Preprocess
    build: Build
    known_dim: int | None = None
    feature_range: tuple[float, float] | None = None

    @cached_property
    def module(self) -> nn.Module:
        """The network, (n, channels, s, s) -> (n, d): float32, eval mode, frozen.

        Features are taken from a copy made once. Whoever trains this module
        takes a copy too, and wraps the result in a Backbone with its own digest.
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
def load_backbone(
    name: str, weights: str, image_size: int, feature_dim: int | None = None
) -> Backbone:
    """Return a backbone by name; nothing heavy is loaded yet.

    Parameters
    ----------
    name : str
        "pixels" (the grey values themselves, d = image_size^2, without weights), "none"
        (the samples are features) or a classification model of torchvision.
    weights : str
        "packaged" (mobilenet_v2 only), "torchvision" (its default weights, downloaded),
        "random" (for tests) or a file with a state dict.
    image_size : int
        Side of the square the network sees; 0 for the size that the weights want.
    feature_dim : int or None
        d of a data set whose samples are features; "none" goes with those alone.
    """
    if image_size < 0:
        raise ValueError(f"image-size must be >= 0, got {image_size!r}.")
    if name == "pixels":
        return _pixels(image_size)
    if name == "none":
        return _no_backbone(feature_dim)
    pretrained.check_name(name)
    if weights == "torchvision":
        preprocess, digest = pretrained.torchvision_preset(name, image_size)
        build: Build = partial(pretrained.build_torchvision, name)
    else:
        size = image_size or _DEFAULT_SIZE
        preprocess = Preprocess(size, size)
        digest, build = _weights_at_hand(name, weights)
    dim, between = _KNOWN_DIMS.get(name), _KNOWN_RANGES.get(name)
    return Backbone(name, weights, digest, preprocess, build, dim, between)


def _pixels(size: int) -> Backbone:
    """Return the backbone whose features are the grey values in [0, 1]."""
    if size == 0:
        raise ValueError(
            'image-size must be > 0 when backbone = "pixels", got 0. '
            "There are no weights to take a size from."
        )
    preprocess = Preprocess(size, size, mode="L", mean=(0.0,), std=(1.0,))
    dim, between = size * size, (0.0, 1.0)
    return Backbone("pixels", "none", "none", preprocess, nn.Flatten, dim, between)


def _no_backbone(feature_dim: int | None) -> Backbone:
    """Return the backbone of samples that are features already."""
    if feature_dim is None:
        raise ValueError(
            'backbone = "none" must go with samples that are features, got images.'
        )
    return Backbone("none", "none", "none", Preprocess(1, 1), nn.Identity, feature_dim)


def _weights_at_hand(name: str, weights: str) -> tuple[str, Build]:
    """Return the digest of weights that need no download, and what builds them."""
    if weights == "packaged":
        if name != "mobilenet_v2":
            raise ValueError(
                'weights must be "torchvision", "random" or a file when backbone = '
                f'{name!r}, got "packaged": only mobilenet_v2 comes packaged.'
            )
        return pretrained.PACKAGED_DIGEST, pretrained.build_packaged
    if weights == "random":
        _LOG.warning(
            'weights = "random" is for tests: the features of an untrained %s '
            "are close to useless.",
            name,
        )
        return pretrained.random_digest(name), partial(pretrained.build_random, name)
    path = pretrained.existing_file(weights)
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
