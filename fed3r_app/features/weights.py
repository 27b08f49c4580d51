"""State dicts: read from files without running code in them, checked, and named."""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

RANDOM_SEED = 0  # of untrained networks, which are the same in every process
# What torch raises for a file that it can't read.
_UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, OSError)


def existing_file(weights: str, words: str) -> Path:
    """Return the path of a file with weights; ``words`` are the other choices."""
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"weights must be {words} or an existing file, got {weights!r}. A "
            f"relative path starts from {Path.cwd()}."
        )
    return path.resolve()


def warn_untrained(name: str) -> None:
    """Log that a network without training is of no use."""
    logging.getLogger(__name__).warning(
        'weights = "random" is for tests: the features of an untrained %s are close to '
        "useless.",
        name,
    )


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """Return the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_arrays(arrays: Mapping[str, Tensor]) -> str:
    """Return a hex digest that names the arrays exactly."""
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


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


def load_state(
    model: nn.Module, state: Mapping[str, Tensor], backbone: str, path: Path
) -> None:
    """Load a state dict that must be the network's own, to the last entry."""
    problems = state_dict_mismatches(model.state_dict(), state)
    if problems:
        shown = "; ".join(problems[:3]) + ("; …" if len(problems) > 3 else "")
        raise ValueError(
            f"weights must be a state dict of backbone = {backbone!r}, got {path}, "
            f"where {len(problems)} entries differ: {shown}. Is it another model's?"
        )
    model.load_state_dict(state, strict=False)


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
