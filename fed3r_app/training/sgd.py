"""Training at a client: plain SGD on its own images or features.

Images come in batches, decoded once where they fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fed3r_app.data import ImageSet
from fed3r_app.features.preprocessing import Preprocess

_KEPT_BYTES = 512 * 2**20
# indices of a batch -> model input, on the model's device
ReadBatch = Callable[[Tensor], Tensor]


class ImageBatches:
    """Maps indices into a client's images to the network's input.

    Parameters
    ----------
    images : ImageSet
        A data set.
    rows : array of shape (n,)
        The client's images.
    preprocess : Preprocess
        How an image becomes the input.
    device : torch.device
        Where the input goes.
    augment : numpy Generator or None
        Draws random crops and mirrorings; None takes the images as they are.
    """

    def __init__(
        self,
        images: ImageSet,
        rows: NDArray[np.int64],
        preprocess: Preprocess,
        device: torch.device,
        augment: np.random.Generator | None = None,
    ) -> None:
        self._images = images
        self._rows = rows
        self._preprocess = preprocess
        self._device = device
        self._augment = augment
        self._kept: dict[int, NDArray[np.uint8]] = {}
        self._room = _KEPT_BYTES

    def __call__(self, indices: Tensor) -> Tensor:
        """Return the input (m, channels, s, s) for some indices (m,)."""
        pixels = [self._pixels(int(self._rows[i])) for i in indices.tolist()]
        return self._preprocess.normalize(pixels, self._device)

    def _pixels(self, row: int) -> NDArray[np.uint8]:
        if self._augment is not None:
            image = self._images.image(row)
            return self._preprocess.random_pixels(image, self._augment)
        if row not in self._kept:
            pixels = self._preprocess.pixels(self._images.image(row))
            self._room -= pixels.nbytes
            if self._room < 0:
                return pixels
            self._kept[row] = pixels
        return self._kept[row]


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains.

    Parameters
    ----------
    epochs, batch_size, lr, weight_decay
        Of SGD without momentum.
    temperature : float
        The logits are divided by it in the loss.
    train_batch_norm : bool
        Normalise by the batch and follow it with the running statistics. A batch of
        one image has nothing to normalise by: it takes the running statistics.
    """

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    temperature: float
    train_batch_norm: bool = False


@dataclass(frozen=True)
class TrainingOutcome:
    """Mean loss over all samples seen, and the number of steps taken."""

    loss: float
    steps: int


def train(
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    read_batch: ReadBatch,
    labels: Tensor,
    settings: TrainingSettings,
    generator: torch.Generator,
    correction: Mapping[str, Tensor] | None = None,
) -> TrainingOutcome:
    """Train in place; raise ValueError as soon as a loss is not finite.

    Parameters
    ----------
    model : nn.Module
        Maps a batch to logits.
    trained : mapping
        The parameters to move, by name; all others stay as they are.
    read_batch : callable
        Returns the model's input for some indices into labels.
    labels : Tensor of shape (n,)
        Classes.
    settings : TrainingSettings
        How.
    generator : torch.Generator
        Draws the order of the samples.
    correction : mapping or None
        Scaffold's c - c_i, added to each gradient.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in trained.values():
        parameter.requires_grad_(True)
    correction = _to_parameter_devices(trained, correction)
    model.eval()  # dropout is not for fine-tuning, and its draws would not be seeded
    optimizer = torch.optim.SGD(
        trained.values(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    total, steps = 0.0, 0
    for _ in range(settings.epochs):
        for batch in _batches(len(labels), settings.batch_size, generator):
            _train_batch_norms(model, settings.train_batch_norm and len(batch) > 1)
            logits = model(read_batch(batch)) / settings.temperature
            loss = functional.cross_entropy(logits, labels[batch])
            if not bool(torch.isfinite(loss)):
                raise ValueError(
                    f"The training loss became {float(loss.detach())} after {steps} "
                    f"steps with lr = {settings.lr:g}. Lower lr."
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            _correct(trained, correction)
            optimizer.step()
            total, steps = total + float(loss.detach()) * len(batch), steps + 1
    seen = max(settings.epochs * len(labels), 1)
    return TrainingOutcome(total / seen, steps)


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield shuffled indices; a last one left alone joins the batch before it."""
    order = torch.randperm(n, generator=generator)
    ends = list(range(size, n, size))
    if ends and n - ends[-1] == 1:
        ends.pop()
    start = 0
    for end in [*ends, n]:
        if end > start:
            yield order[start:end]
        start = end


def _train_batch_norms(model: nn.Module, mode: bool) -> None:
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train(mode)


def _to_parameter_devices(
    trained: Mapping[str, nn.Parameter], correction: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor]:
    """Return the correction where the parameters are; none is an empty one."""
    return {k: v.to(trained[k].device) for k, v in (correction or {}).items()}


def _correct(
    trained: Mapping[str, nn.Parameter], correction: Mapping[str, Tensor]
) -> None:
    for name, value in correction.items():
        gradient = trained[name].grad
        assert gradient is not None
        gradient += value
