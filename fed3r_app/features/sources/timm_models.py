"""Models of timm, without their classifier, prepared as timm's data config says.

The features are what timm makes of ``num_classes=0``: its own pooling.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources.hub import WEIGHT_FILES, download, weight_files
from fed3r_app.features.sources.network import (
    Network,
    check_preprocess,
    untranslatable,
)
from fed3r_app.features.weights import (
    RANDOM_SEED,
    existing_file,
    file_digest,
    read_state,
    text_digest,
    warn_untrained,
)

if TYPE_CHECKING:
    from fed3r_app.features.spec import BackboneSpec

_CONFIG = "config.json"


@dataclass(frozen=True)
class _Model:
    """An architecture of timm with its settings."""

    backbone: str  # in the run config, for errors
    architecture: str
    about: dict[str, Any]  # timm's pretrained_cfg
    arguments: dict[str, Any]  # of the network's class


def load(spec: BackboneSpec, name: str) -> Network:
    """Return a model of timm.

    The weights are "auto" (timm's, from the hub), "random" (for tests), a file with a
    state dict, or a folder as timm's ``save_for_hf`` writes it, whose config.json then
    says how images are prepared.
    """
    model, path = _registered(spec.name, name), None
    if spec.weights == "random":
        warn_untrained(name)
        digest = text_digest(f"random {RANDOM_SEED} {name} {_versions()}")
    else:
        path = _weights_path(spec.weights, model)
        digest = file_digest(path)
        if Path(spec.weights).expanduser().is_dir():
            config = path.with_name(_CONFIG)
            model = _saved(model, config)
            digest = text_digest(digest + file_digest(config))
    own = _preprocess(model)
    return Network(
        digest, own.at(spec.image_size), partial(_build, model, spec.image_size, path)
    )


def _registered(backbone: str, name: str) -> _Model:
    """Return what timm knows of a model by name."""
    import timm

    names = timm.list_models(), timm.list_pretrained()
    if name not in names[0] and name not in names[1]:
        near = difflib.get_close_matches(name, [*names[0], *names[1]], n=1)
        hint = f" Did you mean 'timm:{near[0]}'?" if near else ""
        raise ValueError(
            f"backbone must name a model of timm {timm.__version__}, got "
            f"{backbone!r}.{hint}"
        )
    about = timm.models.get_pretrained_cfg(name)
    found = about.to_dict() if about else {}
    return _Model(backbone, name.partition(".")[0], found, {})


def _saved(model: _Model, config: Path) -> _Model:
    """Return the model with the settings of a folder's config.json."""
    if not config.is_file():
        raise FileNotFoundError(
            f"weights must be a folder with {_CONFIG} and {WEIGHT_FILES[0]}, got no "
            f"{config}. Or name the file with the weights alone."
        )
    saved = json.loads(config.read_text())
    if saved.get("architecture") != model.architecture or "pretrained_cfg" not in saved:
        raise ValueError(
            f"weights must be those of backbone = {model.backbone!r}, got "
            f"{config.parent}, where {_CONFIG} says architecture = "
            f"{saved.get('architecture')!r}."
        )
    arguments = saved.get("model_args") or {}
    return replace(model, about=saved["pretrained_cfg"], arguments=arguments)


def _weights_path(weights: str, model: _Model) -> Path:
    """Return the file with the weights, downloaded where need be."""
    if weights == "auto":
        repository = model.about.get("hf_hub_id")
        if not repository:
            raise ValueError(
                f"backbone = {model.backbone!r} has no weights of its own in timm: set "
                "weights to a file or a folder with them."
            )
        name = WEIGHT_FILES[0]
        folder = download(model.backbone, repository, [name], name, "that file")
        return weight_files(folder)[0]
    folder = Path(weights).expanduser()
    if folder.is_dir():
        return weight_files(folder.resolve())[0]
    return existing_file(weights, '"auto", "random", a folder')


def _preprocess(model: _Model) -> Preprocess:
    """Return timm's own preparation of an image, checked against timm's."""
    from timm.data import create_transform, resolve_data_config

    config = resolve_data_config(pretrained_cfg=model.about or {"input_size": None})
    channels, height, width = config["input_size"]
    mode = config["crop_mode"]
    if height != width:
        raise untranslatable(model.backbone, f"an input of {height} x {width}")
    if mode not in ("center", "squash"):
        raise untranslatable(model.backbone, f"crop_mode = {mode!r}")
    preprocess = Preprocess(
        resize=math.floor(height / config["crop_pct"]),
        crop=height,
        interpolation=config["interpolation"],
        mode="L" if channels == 1 else "RGB",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        squash=mode == "squash",
        enlarge=config["interpolation"],
    )
    check_preprocess(model.backbone, preprocess, create_transform(**config))
    return preprocess


def _build(model: _Model, image_size: int, path: Path | None) -> nn.Module:
    """Return the network without classifier, with the weights of a file if any."""
    import timm

    about = {k: v for k, v in model.about.items() if k not in ("source", "file")}
    arguments = {**model.arguments, "num_classes": 0}
    own = about.get("input_size", (3, 0, 0))[1]
    if image_size not in (0, own) and about.get("fixed_input_size"):
        arguments["img_size"] = image_size  # timm interpolates position embeddings
    if path is None:
        torch.manual_seed(RANDOM_SEED)  # the caller forks the generator
        network: nn.Module = timm.create_model(model.architecture, **arguments)
    else:
        # Without a classifier in either, timm loads strictly.
        loaded = {"custom_load": False, "label_offset": 0, "num_classes": 0}
        about |= {"state_dict": _without_classifier(path, about), **loaded}
        try:
            network = timm.create_model(
                model.architecture, pretrained=True, pretrained_cfg=about, **arguments
            )
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"weights must be those of backbone = {model.backbone!r}, got {path}: "
                f"{reason} Is it another model's?"
            ) from error
    return network


def _without_classifier(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a file but for those of the classifier."""
    names = about.get("classifier") or ()
    names = (names,) if isinstance(names, str) else names
    heads = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    return {k: v for k, v in read_state(path).items() if k not in heads}


def _versions() -> str:
    import timm

    return f"{torch.__version__} {timm.__version__}"
