"""Training data in memory: uint8 rows made into batches of floats, with random crops and flips by address."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from langevin.random import Purpose, batch_indices, integers, stream
from langevin_paper.data import load
from langevin_paper.training import Training

__all__ = ["Inputs", "augmentations", "channel_moments", "crop_and_flip"]


def channel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of uint8 images by channel, each (channel, 1, 1).

    Images are (n, channel, row, column), or (n, row, column) when they have one channel.
    They are computed from counts of the 256 values: exact, and without a copy of the data in floats.

    Example:
        >>> channel_moments(torch.tensor([[[[0, 4]]]], dtype=torch.uint8))[1].item()
        2.0
    """
    images = images if images.ndim == 4 else images[:, None]
    counts = torch.stack([images[:, channel].flatten().bincount(minlength=256) for channel in range(images.shape[1])]).double()
    values = torch.arange(256, dtype=torch.float64, device=images.device)
    share = counts / counts.sum(1, keepdim=True)
    mean = (share * values).sum(1)
    std = (share * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)


def augmentations(seed: int, steps: range, batch_size: int, padding: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Draw for every image of the steps' batches the crop's row and column, 0..2 padding, and whether to flip: (step, batch, 3)."""
    bounds = (2 * padding + 1, 2 * padding + 1, 2)
    return integers(seed, stream(Purpose.AUGMENT), steps, batch_size, bounds, device=device)


def crop_and_flip(images: Tensor, choices: Tensor, padding: int) -> Tensor:
    """Cut from each image, padded by black pixels on every side, a window of its own size; then mirror some.

    Args:
        images: (n, channel, row, column), before any scaling: black is 0.
        choices: (n, 3): row and column of the window in the padded image, and 1 to mirror.
        padding: how many pixels.
    """
    n, channels, height, width = images.shape
    top, left, mirrored = choices.unbind(1)
    padded = functional.pad(images, (padding,) * 4)
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device).expand(n, -1)
    column = torch.where(mirrored[:, None] == 1, width - 1 - column, column)
    return padded[
        torch.arange(n, device=images.device).view(n, 1, 1, 1),
        torch.arange(channels, device=images.device).view(1, channels, 1, 1),
        (top[:, None] + row).view(n, 1, height, 1),
        (left[:, None] + column).view(n, 1, 1, width),
    ]


@dataclass(frozen=True, eq=False)
class Epoch:
    """The order and the augmentations of some steps."""

    first: int
    rows: Tensor  # (step, batch)
    choices: Tensor | None  # (step, batch, 3)


class Inputs:
    """A training's data set on a device; it stays uint8, since a batch of floats costs less than fetching one from memory."""

    def __init__(self, training: Training, seed: int, device: torch.device | str = "cpu") -> None:
        """Load the data and compute their scale."""
        data = load(training.data)
        num_train, num_test = training.rows or (len(data.x_train), len(data.x_test))
        self.training, self.seed, self.device = training, seed, device
        self.sha256, self.source, self.attribution = data.sha256, data.source, data.attribution
        self.x_train, self.y_train = data.x_train[:num_train].to(device), data.y_train[:num_train].to(device)
        self.x_test, self.y_test = data.x_test[:num_test].to(device), data.y_test[:num_test].to(device)
        zero, white = torch.tensor(0.0, device=device), torch.tensor(255.0, device=device)
        self.centre, self.spread = channel_moments(self.x_train) if training.standardise else (zero, white)

    def epoch(self, steps: range) -> Epoch:
        """Draw what is random in the steps' batches."""
        training = self.training
        rows = batch_indices(self.seed, stream(Purpose.BATCH), steps, training.batch_size, training.num_train, device=self.device)
        choices: Tensor | None = None
        if training.padding is not None:
            choices = augmentations(self.seed, steps, training.batch_size, training.padding, device=self.device)
        return Epoch(steps.start, rows, choices)

    def batch(self, epoch: Epoch, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of a step."""
        rows = epoch.rows[step - epoch.first]
        images = self.x_train[rows]
        if epoch.choices is not None and self.training.padding is not None:
            images = crop_and_flip(images, epoch.choices[step - epoch.first], self.training.padding)
        return self.scale(images), self.y_train[rows]

    def scale(self, images: Tensor) -> Tensor:
        """Return uint8 rows as the network takes them."""
        scaled = (images - self.centre) / self.spread
        # Only the images: the weights stay as they are, for the fused update.
        return scaled.contiguous(memory_format=torch.channels_last) if self.training.channels_last else scaled
