"""Where pretrained networks come from: one module for each source.

A backbone is named ``SOURCE:NAME``; a name without a source is one of torchvision. The
table below needs no torch, and a module of it is imported when its source is named: its
``load(spec, name)`` returns a `network.Network`. May ask ``features.preprocessing``,
``features.weights`` and ``features.spec``.
"""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from typing import NamedTuple

_TORCHVISION = "torchvision"


class Source(NamedTuple):
    """Where networks come from."""

    module: str  # of this package
    library: str = ""  # that must be installed
    extra: str = ""  # of this package that installs it


SOURCES: dict[str, Source] = {
    _TORCHVISION: Source("torchvision_models"),
    "timm": Source("timm_models", "timm", "timm"),
    "hf": Source("hugging_face", "transformers", "hf"),
    "python": Source("python_code"),
}


def find_source(backbone: str) -> tuple[Source, str]:
    """Return the source of a backbone and its name there, or raise with a sentence.

    A library that is not installed is named, with the command that installs it.
    """
    prefix, colon, name = backbone.partition(":")
    if not colon:
        prefix, name = _TORCHVISION, backbone
    if prefix not in SOURCES or not name:
        near = difflib.get_close_matches(prefix, SOURCES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near and near[0] != prefix else ""
        raise ValueError(
            "backbone must be a name of torchvision, or SOURCE:NAME with one of the "
            f"sources {', '.join(SOURCES)}, got {backbone!r}.{hint}"
        )
    source = SOURCES[prefix]
    if source.library and find_spec(source.library) is None:
        raise ValueError(
            f"backbone = {backbone!r} must find the package {source.library}, which is "
            f"not installed. Install it: pip install 'fed3r-flower[{source.extra}]'"
        )
    return source, name
