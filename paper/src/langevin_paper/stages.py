"""Parts of a training run: networks by their settings, and stages, that is some epochs with one optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from typing_extensions import override

from langevin import optim
from langevin.checks import check_integer, check_number, needs
from langevin.kernels.schedules import Schedule, step_decay
from langevin.targets.priors import Prior
from langevin_paper.models import mlp, resnet18

__all__ = ["BASELINES", "MLP", "NETWORKS", "Network", "ResNet18", "Stage", "decay"]

BASELINES = ("SGD", "Adam")
"""The optimizers that are torch's own."""


class Network(Protocol):
    """A network as its settings, which can be compared and written down."""

    def build(self) -> nn.Module:
        """Make it, initialised by torch."""
        ...


@dataclass(frozen=True)
class MLP(Network):
    """A fully connected network."""

    sizes: tuple[int, ...]

    @override
    def build(self) -> nn.Module:
        return mlp(*self.sizes, onednn=True)


@dataclass(frozen=True)
class ResNet18(Network):
    """The CIFAR form of ResNet-18."""

    num_classes: int
    width: int = 64

    @override
    def build(self) -> nn.Module:
        return resnet18(self.num_classes, width=self.width)


NETWORKS: dict[str, type[MLP] | type[ResNet18]] = {"MLP": MLP, "ResNet18": ResNet18}


@dataclass(frozen=True)
class Stage:
    """Some epochs with one optimizer.

    Args:
        epochs: how many.
        optimizer: a name of `langevin.optim`, or "SGD" or "Adam" for torch's.
        lr: learning rate on the mean loss as a function of the stage's own epoch 0, 1, ..., the paper's equation (3).
        settings: the optimizer's own.
        prior: None is flat; for SGD and Adam ``-log prior / N`` is added to the mean loss, so that all methods have one objective.
        temperature: tau; SGD and Adam have none.
    """

    epochs: int
    optimizer: str
    lr: Schedule
    settings: Mapping[str, Any] = field(default_factory=dict)
    prior: Prior | None = None
    temperature: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        check_integer("Stage", "epochs", self.epochs, 1)
        if self.optimizer not in (*BASELINES, *optim.__all__):
            raise needs("Stage", "optimizer", f"one of {', '.join((*BASELINES, *optim.__all__))}", self.optimizer)
        if not isinstance(self.lr, Schedule):
            raise needs("Stage", "lr", "a schedule of langevin.kernels.schedules", self.lr, TypeError)
        check_number("Stage", "temperature", self.temperature, ">= 0", lambda v: v >= 0)
        if self.optimizer in BASELINES and self.temperature:
            raise needs("Stage", "temperature", f"0 for {self.optimizer}", self.temperature)


@dataclass(frozen=True)
class _ScaledDecay(Schedule):
    initial: float
    factor: float
    every: int
    of: int
    epochs: int

    def __call__(self, epoch: int) -> float:
        return self.initial * self.factor ** (epoch * self.of // (self.epochs * self.every))

    def __str__(self) -> str:
        return f"{self.initial:g} * {self.factor:g}^floor(step * {self.of} / ({self.epochs} * {self.every}))"


def decay(initial: float, epochs: int, *, factor: float, every: int, of: int) -> Schedule:
    """Make equation (3) for a run of that many epochs: L is to them as `every` is to the paper's `of`.

    Example:
        >>> [decay(0.1, 250, factor=0.5, every=40, of=250)(epoch) for epoch in (0, 39, 40, 80)]
        [0.1, 0.1, 0.05, 0.025]
    """
    if epochs == of:
        return step_decay(initial, factor=factor, every=every)
    return _ScaledDecay(initial, factor, every, of, epochs)
