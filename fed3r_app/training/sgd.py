"""Training at a client: plain SGD on its own images or features.

Images come in batches, decoded once where they fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fed3r_app.data import ImageSet
from fed3r_app.features.preprocessing import Preprocess

# Added to each class count: with 1 a client of one class learns next to nothing, with
# 10 its features gained most (docs/fine-tuning.md).
_SMOOTHING = 10
_KEPT_BYTES = 512 * 2**20
# indices of a batch -> model input, on the model's device
ReadBatch = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """Maps indices into a client's images to the network's input."""

    images: ImageSet  # of the whole data set
    rows: NDArray[np.int64]  # the client's images, (n,)
    preprocess: Preprocess
    device: torch.device  # where the input goes
    # Draws random crops and mirrorings; None takes the images as they are.
    augment: np.random.Generator | None = None
    _kept: dict[int, NDArray[np.uint8]] = field(default_factory=dict, init=False)

    def unchanged(self) -> ImageBatches:
        """Return the same images without crops and mirrorings."""
        return self if self.augment is None else replace(self, augment=None)

    def __call__(self, indices: Tensor) -> Tensor:
        """Return the input (m, channels, s, s) for some indices (m,)."""
        pixels = [self._pixels(int(self.rows[i])) for i in indices.tolist()]
        return self.preprocess.normalize(pixels, self.device)

    def try_out(self, row: int) -> None:
        """Raise UnreadableImage if that is so; keep what will be wanted as it is."""
        if self.augment is None:
            self._pixels(row)
        else:  # a random part would be another draw
            self.images.image(row, self.preprocess.reading)

    def only(self, rows: NDArray[np.int64]) -> ImageBatches:
        """Return some of the images; what is in memory stays there."""
        some = replace(self, rows=rows)
        some._kept.update(self._kept)
        return some

    def _pixels(self, row: int) -> NDArray[np.uint8]:
        if row in self._kept:
            return self._kept[row]
        image = self.images.image(row, self.preprocess.reading)
        if self.augment is not None:
            return self.preprocess.random_pixels(image, self.augment)
        pixels = self.preprocess.pixels(image)
        if (len(self._kept) + 1) * pixels.nbytes <= _KEPT_BYTES:
            self._kept[row] = pixels
        return pixels


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains: SGD without momentum."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    temperature: float  # the logits are divided by it in the loss
    clip_norm: float = 0.0  # largest norm of a gradient; 0: any
    # The loss adds the log of the client's own class frequencies to the logits.
    local_prior: bool = False
    # Normalise by the batch and follow it with the running statistics. A batch of one
    # image has nothing to normalise by: it takes the running statistics.
    train_batch_norm: bool = False


class NotFiniteError(ValueError):
    """A loss that is not finite."""


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
    """Train in place; raise NotFiniteError as soon as a loss is not finite.

    Moves the parameters ``trained`` of a model that maps a batch to logits; all others
    stay as they are. The generator draws the order of the samples, whose labels are of
    shape (n,). Scaffold's correction c - c_i is added to each gradient.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in trained.values():
        parameter.requires_grad_(True)
    correction = {k: v.to(trained[k].device) for k, v in (correction or {}).items()}
    model.eval()  # dropout is not for fine-tuning, and its draws would not be seeded
    optimizer = torch.optim.SGD(
        trained.values(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    total, steps, prior = 0.0, 0, None
    for _ in range(settings.epochs):
        for batch in _batches(len(labels), settings.batch_size, generator):
            _train_batch_norms(model, settings.train_batch_norm and len(batch) > 1)
            logits = model(read_batch(batch)) / settings.temperature
            if settings.local_prior:
                prior = log_prior(labels, logits.shape[1]) if prior is None else prior
                logits = logits + prior
            loss = functional.cross_entropy(logits, labels[batch])
            if not bool(torch.isfinite(loss)):
                raise NotFiniteError(
                    f"The training loss became {float(loss.detach())} after {steps} "
                    f"steps with lr = {settings.lr:g}. Lower lr."
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(trained.values(), settings.clip_norm)
            _correct(trained, correction)
            optimizer.step()
            total, steps = total + float(loss.detach()) * len(batch), steps + 1
    seen = max(settings.epochs * len(labels), 1)
    return TrainingOutcome(total / seen, steps)


def measure(
    model: nn.Module, read_batch: ReadBatch, labels: Tensor, settings: TrainingSettings
) -> tuple[float, int]:
    """Return the mean cross-entropy, without any prior, and what is predicted right."""
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(labels), settings.batch_size):
            batch = torch.arange(start, min(start + settings.batch_size, len(labels)))
            logits = model(read_batch(batch))
            loss = functional.cross_entropy(
                logits / settings.temperature, labels[batch], reduction="sum"
            )
            total += float(loss)
            correct += int((logits.argmax(dim=1) == labels[batch]).sum())
    return total / max(len(labels), 1), correct


def log_prior(labels: Tensor, num_classes: int) -> Tensor:
    """Return log((n_c + s) / (n + sC)) (C,) of a client's n labels."""
    counts = torch.bincount(labels, minlength=num_classes) + _SMOOTHING
    return (counts / counts.sum()).log()


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


def _correct(
    trained: Mapping[str, nn.Parameter], correction: Mapping[str, Tensor]
) -> None:
    for name, value in correction.items():
        gradient = trained[name].grad
        if gradient is not None:  # else the loss does not depend on it
            gradient += value
