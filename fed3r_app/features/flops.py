"""The FLOPs of backbones, counted once and remembered on disk.

Counting needs the network, which a run whose features are all in the cache can do
without.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fed3r_app.features.backbone import Backbone
from fed3r_app.files import write_atomically

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Of batch norm, for each value: what the paper's 332.9 MFLOPs for MobileNetV2 contain.
_FLOPS_PER_NORMALISED_VALUE = 5


def forward_flops(backbone: Backbone, folder: Path) -> int:
    """Return the FLOPs of one image through the backbone, as the paper counts.

    Parameters
    ----------
    backbone : Backbone
        They depend on its architecture and input, not on its weights.
    folder : Path
        Where to remember them.
    """
    shape = backbone.preprocess
    path = folder / f"flops-{backbone.name}-{shape.channels}x{shape.crop}.json"
    try:
        return int(json.loads(path.read_text())["flops"])
    except (OSError, ValueError, KeyError, TypeError):
        flops = count_forward_flops(backbone.module, shape.crop, shape.channels)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"flops": flops}).encode())
    except OSError:
        pass  # a cache that can't be written has been warned about already
    return flops


def count_forward_flops(module: nn.Module, image_size: int, channels: int = 3) -> int:
    """Return F_phi, the FLOPs of one image through a network, as the paper counts.

    Multiply-adds of convolutions and matrix products, and 5 for each value that goes
    through a batch norm: 332.9 million for MobileNetV2 at 224 px.

    Parameters
    ----------
    module : nn.Module
        In eval mode, batch norm not folded into the convolutions.
    image_size : int
        Side of the square image.
    channels : int
        Channels of the image.
    """
    normalised = 0

    def count_values(norm: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORMS)]
    hooks = [norm.register_forward_hook(count_values) for norm in norms]
    try:
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            module(_blank_image(module, image_size, channels))
    finally:
        for hook in hooks:
            hook.remove()
    # torch counts a multiply-add as two.
    multiply_adds: int = counter.get_total_flops() // 2
    return multiply_adds + _FLOPS_PER_NORMALISED_VALUE * normalised


def _blank_image(module: nn.Module, image_size: int, channels: int) -> Tensor:
    """Return an image (1, channels, s, s) where the module's parameters are."""
    parameter = next(module.parameters(), None)
    image = torch.zeros(1, channels, image_size, image_size)
    return image if parameter is None else image.to(parameter.device, parameter.dtype)
