"""The FLOPs of backbones, counted once and remembered on disk.

Counting needs the network, which a run whose features are all in the cache can do
without.
"""

from __future__ import annotations

import json
from pathlib import Path

from fed3r_app.backbones import Backbone
from fed3r_app.costs import count_forward_flops
from fed3r_app.run_directory import write_atomically


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
