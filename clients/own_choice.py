"""What a node chooses itself: the code and the files that it uses; no torch.

A run config comes from the server, which must not choose code or files on a node. There
they come from the node's own config, whose word goes before the run's. In a simulation
both are the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from fed3r_app.config import Config, Value
from fed3r_app.features.spec import WEIGHTS, BackboneSpec

_CODE = "python:"
_CLIENT_PROGRAM = "flwr-clientapp"  # of a SuperNode; simulated clients have none
_WITHOUT_NETWORK = ("pixels", "none")


def own_choice(
    node_config: Mapping[str, Value], config: Config, owner: str
) -> tuple[str, str]:
    """Return `backbone` and `weights` for a node, or raise with a sentence.

    ``owner`` is the client, for the error.
    """
    named = {"backbone": config.backbone, "weights": config.weights}
    if not (config.is_local or _is_deployed()) or config.backbone in _WITHOUT_NETWORK:
        return config.backbone, config.weights
    own = {key: str(node_config[key]) for key in named if node_config.get(key)}
    for key, what in (("backbone", "code"), ("weights", "a file")):
        value = named[key]
        if key not in own and _is_of_node(key, value):
            raise ValueError(
                f"{key} must be named by the config of client {owner} itself, got "
                f"{value!r} by the run config alone: it is {what}, which a server does "
                "not choose on a node. Start the node there with fed3r node "
                f"--{key} …, or a SuperNode with --node-config '{key}=\"…\"'."
            )
    chosen = named | own
    return chosen["backbone"], chosen["weights"]


def _is_of_node(key: str, value: str) -> bool:
    """Return whether a value is code or a file, whichever backbone it is for."""
    if key == "weights":
        return value not in WEIGHTS
    return any(part.name.startswith(_CODE) for part in BackboneSpec(value).parts())


def _is_deployed() -> bool:
    return Path(sys.argv[0]).name == _CLIENT_PROGRAM
