"""The FLOPs of backbones, counted once and remembered on disk.

Counting needs the network, which a run whose features are all in the cache can do
without.
"""

from __future__ import annotations

import json
from contextlib import suppress
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

    They are remembered in the folder.
    """
    return sum(_forward_flops(part, folder) for part in backbone.parts)


def _forward_flops(backbone: Backbone, folder: Path) -> int:
    shape = backbone.preprocess
    name = f"flops-{backbone.file_name}-{shape.channels}x{shape.crop}.json"
    path = folder / name
    try:
        return int(json.loads(path.read_text())["flops"])
    except (OSError, ValueError, KeyError, TypeError):
        flops = count_forward_flops(backbone.module, shape.crop, shape.channels)
    with suppress(OSError):  # a cache that can't be written was warned about already
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"flops": flops}).encode())
    return flops


def count_forward_flops(module: nn.Module, image_size: int, channels: int = 3) -> int:
    """Return F_phi, the FLOPs of one image through a network, as the paper counts.

    Multiply-adds of convolutions and matrix products, and 5 for each value that goes
    through a batch norm: 332.9 million for MobileNetV2 at 224 px. The network is in
    eval mode, its batch norm not folded into the convolutions.
    """
    normalised = 0
    like = next(module.parameters(), torch.empty(0))

    def count_values(norm: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    norms = [part for part in module.modules() if isinstance(part, _BATCH_NORMS)]
    hooks = [norm.register_forward_hook(count_values) for norm in norms]
    try:
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            module(like.new_zeros(1, channels, image_size, image_size))
    finally:
        for hook in hooks:
            hook.remove()
    # torch counts a multiply-add as two.
    multiply_adds: int = counter.get_total_flops() // 2
    return multiply_adds + _FLOPS_PER_NORMALISED_VALUE * normalised
