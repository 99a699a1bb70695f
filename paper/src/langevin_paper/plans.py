"""What a training run is: data, network and stages, as frozen values that say everything the run depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol

from torch import nn
from typing_extensions import override

from langevin import optim
from langevin.checks import check_integer, check_number, needs
from langevin.schedules import Schedule, constant, step_decay
from langevin.targets import priors
from langevin.targets.priors import Prior
from langevin_paper.data import KNOWN
from langevin_paper.models import mlp, resnet18

__all__ = ["BASELINES", "MLP", "Network", "Plan", "ResNet18", "Stage", "decay", "make_plan"]

BASELINES = ("SGD", "Adam")
"""The optimizers that are torch's own."""


class Network(Protocol):
    """A network as its settings, for plans are compared and written down."""

    def build(self) -> nn.Module:
        """Make it, initialised by torch."""
        ...


@dataclass(frozen=True)
class MLP(Network):
    """A fully connected network."""

    sizes: tuple[int, ...]

    @override
    def build(self) -> nn.Module:
        return mlp(*self.sizes)


@dataclass(frozen=True)
class ResNet18(Network):
    """The CIFAR form of ResNet-18."""

    num_classes: int
    width: int = 64

    @override
    def build(self) -> nn.Module:
        return resnet18(self.num_classes, width=self.width)


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
            raise needs("Stage", "lr", "a schedule of langevin.schedules", self.lr, TypeError)
        check_number("Stage", "temperature", self.temperature, ">= 0", lambda v: v >= 0)
        if self.optimizer in BASELINES and self.temperature:
            raise needs("Stage", "temperature", f"0 for {self.optimizer}", self.temperature)


@dataclass(frozen=True)
class Plan:
    """A training run of one method, but for its seed.

    Args:
        method: its name, for tables and messages.
        data: the name of a data set, for `langevin_paper.data.load`.
        network: what is trained.
        stages: one after the other; each starts an optimizer of its own, with empty averages.
        batch_size: n; it divides the number of training rows, so an epoch is a whole number of steps.
        num_data: N of ``U = N * mean loss - log prior``; None takes the number of training rows.
        rows: how many training and test rows to use, from the first on; None takes all.
        standardise: subtract the training set's mean and divide by its deviation, by channel; otherwise divide by 255.
        padding: crop at random from the image padded by so many black pixels, and flip it half of the time; None for neither.
        channels_last: hand images over with their colours side by side, which is faster for wide networks on a CPU. For networks of
            4 channels or fewer torch 2.13 then corrupts its memory in the backward pass (oneDNN): leave it False there.
        averaged_epochs: accuracies are averages over the evaluations after each of this many last epochs.
        threshold: report the share of connection weights with at least this magnitude.
    """

    method: str
    data: str
    network: Network
    stages: tuple[Stage, ...]
    batch_size: int = 100
    num_data: int | None = None
    rows: tuple[int, int] | None = None
    standardise: bool = False
    padding: int | None = None
    channels_last: bool = False
    averaged_epochs: int = 5
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.data not in KNOWN:
            raise needs("Plan", "data", f"one of {', '.join(KNOWN)}", self.data)
        if not self.stages:
            raise needs("Plan", "stages", "at least one stage", self.stages)
        check_integer("Plan", "batch_size", self.batch_size, 1)
        check_integer("Plan", "averaged_epochs", self.averaged_epochs, 1)
        for rows, available in zip(self.rows or KNOWN[self.data].rows, KNOWN[self.data].rows, strict=True):
            if check_integer("Plan", "rows", rows, 1) > available:
                raise needs("Plan", "rows", f"at most {available} of {self.data}", rows)
        if self.num_train % self.batch_size:
            raise needs("Plan", "batch_size", f"a divisor of the {self.num_train} training rows", self.batch_size)
        if self.num_data is not None:
            check_integer("Plan", "num_data", self.num_data, 1)
        if self.padding is not None:
            check_integer("Plan", "padding", self.padding, 0)

    @property
    def num_train(self) -> int:
        """Training rows that are used."""
        return (self.rows or KNOWN[self.data].rows)[0]

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.num_train // self.batch_size

    @property
    def epochs(self) -> int:
        """Epochs in all stages."""
        return sum(stage.epochs for stage in self.stages)

    def stage_of(self, epoch: int) -> tuple[int, int]:
        """Return the number of the stage that the run's epoch belongs to, and the run's first epoch of that stage."""
        first = 0
        for number, stage in enumerate(self.stages):
            if epoch < first + stage.epochs:
                return number, first
            first += stage.epochs
        raise needs("stage_of", "epoch", f"less than {self.epochs}", epoch)

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as values that JSON can hold; two plans are the same run when these are equal."""
        return _plain(self)


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


NETWORKS: dict[str, type[MLP] | type[ResNet18]] = {"MLP": MLP, "ResNet18": ResNet18}


def make_plan(method: str, stages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Plan:
    """Build the plan that plain settings describe, so that what is recorded is what is run.

    Args:
        method: its name.
        stages: for each its optimizer, lr, prior, temperature, and the optimizer's own settings.
        settings: `epochs`, one number for each stage; `decay` of the learning rate, as `decay` takes it, or None; `network` with
            its `kind`; and what `Plan` takes.
    """
    rest = {name: value for name, value in settings.items() if name not in ("epochs", "decay", "network")}
    network = dict(settings["network"])
    built = []
    for stage, epochs in zip(stages, settings["epochs"], strict=True):
        own = {name: value for name, value in stage.items() if name not in ("optimizer", "lr", "prior", "temperature")}
        lr = decay(stage["lr"], epochs, **settings["decay"]) if settings["decay"] else constant(stage["lr"])
        built.append(Stage(epochs, stage["optimizer"], lr, own, priors.from_plain(stage["prior"]), stage["temperature"]))
    return Plan(method, network=NETWORKS[network.pop("kind")](**network), stages=tuple(built), **rest)


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return str(value)
    if isinstance(value, Prior):
        return priors.to_plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        kind = {} if isinstance(value, (Plan, Stage)) else {"kind": type(value).__name__}
        return {**kind, **{entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}}
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value
