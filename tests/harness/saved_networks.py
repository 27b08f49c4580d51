"""Tiny networks of timm and transformers with random weights, saved to folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers import AutoImageProcessor

_SIDE = 32
_SMALL: dict[str, Any] = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 16, "image_size": _SIDE, "patch_size": 8},
}
_TEXT = {key: _SMALL[key] for key in list(_SMALL)[:4]} | {
    **{"vocab_size": 9, "bos_token_id": 7, "eos_token_id": 8, "pad_token_id": 0}
}
_SHORT: dict[str, Any] = {
    "size": {"shortest_edge": 37},
    "crop_size": {"height": _SIDE, "width": _SIDE},
}
_SQUARE: dict[str, Any] = {"size": {"height": _SIDE, "width": _SIDE}}
_TINY_VIT: dict[str, Any] = {
    **{"embed_dim": 16, "depth": 1, "num_heads": 2},
    **{"img_size": _SIDE, "patch_size": 8},
}


@dataclass(frozen=True)
class SavedNetwork:
    """A network in a folder, and what its own library makes of an image."""

    backbone: str
    folder: Path
    features: Callable[[Image.Image], Tensor]  # (d,)


def _class_token(model: Any, x: Tensor) -> Any:
    return model(x).last_hidden_state[:, 0]


def _pooled(model: Any, x: Tensor) -> Any:
    return model(x).pooler_output.flatten(1)


def _tower(model: Any, x: Tensor) -> Any:
    return model.vision_model(pixel_values=x).pooler_output


# Model class, its settings, processor class, its settings, features.
_Made = tuple[str, Any, str, dict[str, Any], Callable[[Any, Tensor], Any]]
HF: dict[str, _Made] = {
    "dinov2": ("Dinov2", _SMALL, "Bit", _SHORT, _pooled),
    "clip": (
        "CLIP",
        {"vision_config": _SMALL, "text_config": _TEXT},
        "CLIP",
        _SHORT,
        _tower,
    ),
    "clip-vision": ("CLIPVision", _SMALL, "CLIP", _SHORT, _pooled),
    "siglip-vision": ("SiglipVision", _SMALL, "Siglip", _SQUARE, _pooled),
    "vit": ("ViT", _SMALL, "ViT", _SQUARE, _class_token),
    "ijepa": (
        "IJepa",
        _SMALL,
        "ViT",
        _SQUARE,
        lambda model, x: model(x).last_hidden_state.mean(1),
    ),
    "convnext": (
        "ConvNext",
        {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        "ConvNext",
        {"size": {"shortest_edge": _SIDE}, "crop_pct": 0.875},
        _pooled,
    ),
    "dinov3": ("DINOv3ViT", _SMALL, "DINOv3ViT", _SQUARE, _pooled),
    # These two can't be taken.
    "vit-mae": ("ViTMAE", _SMALL, "ViT", _SQUARE, _class_token),
    "efficientnet": (
        "EfficientNet",
        {"image_size": _SIDE, "width_coefficient": 0.25, "depth_coefficient": 0.1},
        "EfficientNet",
        _SQUARE,
        _pooled,
    ),
}
TIMM: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": _TINY_VIT,
    "vit_small_patch14_dinov2": _TINY_VIT,
    "vit_base_patch16_siglip_224": _TINY_VIT,
    "test_resnet": {},
    "test_convnext": {},
}


def _draw(model: nn.Module) -> None:
    """Draw weights of such sizes that the image shows in the features.

    As they are drawn for training, some keep it away from them: layer scales of 1e-5.
    """
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            fan_in = max(1, parameter[0].numel())
            nn.init.normal_(parameter, std=fan_in**-0.5, generator=generator)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)


def save_hf(folder: Path, name: str) -> SavedNetwork:
    """Save a model of transformers and its image processor."""
    kind, settings, processor_kind, options, features = HF[name]
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    _draw(model)
    model.save_pretrained(folder)
    getattr(transformers, f"{processor_kind}ImageProcessor")(**options).save_pretrained(
        folder
    )

    def own(image: Image.Image) -> Tensor:
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        with torch.no_grad():
            x = processor(image, return_tensors="pt")["pixel_values"]
            made: Tensor = features(model, x)[0]
        return made

    return SavedNetwork(f"hf:someone/{name}", folder, own)


def save_timm(folder: Path, name: str) -> SavedNetwork:
    """Save a model of timm with its classifier and its data config."""
    arguments = TIMM[name]
    model: nn.Module = timm.create_model(name, **arguments).eval()
    _draw(model)
    about: Any = model.pretrained_cfg
    model.pretrained_cfg = {**about, "input_size": (3, _SIDE, _SIDE)}  # type: ignore[assignment]
    timm.models.save_for_hf(
        model, str(folder), model_args=arguments, safe_serialization=True
    )
    config = timm.data.resolve_data_config(pretrained_cfg=model.pretrained_cfg)
    transform = timm.data.create_transform(**config)
    bare: Any = model
    bare.reset_classifier(0)

    def own(image: Image.Image) -> Tensor:
        with torch.no_grad():
            made: Tensor = bare(transform(image)[None])[0]
        return made

    return SavedNetwork(f"timm:{name}", folder, own)


def save(folder: Path, name: str) -> SavedNetwork:
    """Save a network of either library."""
    return (save_hf if name in HF else save_timm)(folder, name)
