"""A network of the user's own: what a function of their module returns.

``python:my_package.my_module:make`` calls ``make()``, which returns the network, whose
output is of shape (n, d), and how an image becomes its input: a `Preprocess`, or a dict
of its attributes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources.network import Network
from fed3r_app.features.weights import (
    RANDOM_SEED,
    digest_arrays,
    existing_file,
    load_state,
    read_state,
    text_digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fed3r_app.features.spec import BackboneSpec

_TUPLES = ("mean", "std")


def load(spec: BackboneSpec, name: str) -> Network:
    """Return the network of a function.

    The weights are "auto" (as the function returns them) or a file with a state dict.
    """
    make = _function(spec.name, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_SEED)  # untrained, it is the same in every process
        network, preprocess = _made(spec.name, make())
    if spec.weights != "auto":
        path = existing_file(spec.weights, '"auto"')
        load_state(network, read_state(path), spec.name, path)
    # What is not in the state dict is in the text of the module.
    digest = text_digest(
        digest_arrays(network.state_dict()) + _text(sys.modules[make.__module__])
    )
    return Network(digest, preprocess.at(spec.image_size), lambda: network)


@cache  # a process runs the code as it was when it was imported, whatever is edited
def _text(module: ModuleType) -> str:
    return inspect.getsource(module)


def _function(backbone: str, name: str) -> Callable[[], Any]:
    """Return the function that a name of the form MODULE:FUNCTION means."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"backbone must be python:MODULE:FUNCTION, got {backbone!r}.")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backbone = {backbone!r} must find its module, got: {error}. Install the "
            "package here, or put its folder into PYTHONPATH."
        ) from error
    make = getattr(found, attribute, None)
    if not inspect.isfunction(make):
        raise ValueError(
            f"backbone must be python:MODULE:FUNCTION, got {backbone!r}: "
            f"{found.__file__} has no function {attribute}."
        )
    return make


def _made(backbone: str, made: object) -> tuple[nn.Module, Preprocess]:
    """Return the network and its preprocessing, or raise with a sentence."""
    rule = (
        f"The function of backbone = {backbone!r} must return a torch.nn.Module and a "
        "Preprocess, or a dict of its attributes"
    )
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"{rule}, got {type(made).__name__}.")
    network, preprocess = made
    try:
        if isinstance(preprocess, Mapping):
            values: dict[str, Any]
            values = {k: tuple(v) if k in _TUPLES else v for k, v in preprocess.items()}
            preprocess = Preprocess(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule}, got: {error}") from error
    if not isinstance(network, nn.Module) or not isinstance(preprocess, Preprocess):
        kinds = f"{type(network).__name__} and {type(preprocess).__name__}"
        raise ValueError(f"{rule}, got {kinds}.")
    return network, preprocess
