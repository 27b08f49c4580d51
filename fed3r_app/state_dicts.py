"""Named weights read from a file, and compared with what a network wants."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file or of one saved by torch."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
    ) as error:
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


def misfits(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
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
