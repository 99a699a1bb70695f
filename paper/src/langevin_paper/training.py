"""What a training run is: data, network and stages, as frozen values that say everything the run depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from langevin.checks import check_integer, needs
from langevin.kernels.schedules import constant
from langevin.serialization import to_plain
from langevin.targets import priors
from langevin_paper.data import KNOWN
from langevin_paper.stages import NETWORKS, Network, Stage, decay

__all__ = ["Training", "make_training"]


@dataclass(frozen=True)
class Training:
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
            raise needs("Training", "data", f"one of {', '.join(KNOWN)}", self.data)
        if not self.stages:
            raise needs("Training", "stages", "at least one stage", self.stages)
        check_integer("Training", "batch_size", self.batch_size, 1)
        check_integer("Training", "averaged_epochs", self.averaged_epochs, 1)
        for rows, available in zip(self.rows or KNOWN[self.data].rows, KNOWN[self.data].rows, strict=True):
            if check_integer("Training", "rows", rows, 1) > available:
                raise needs("Training", "rows", f"at most {available} of {self.data}", rows)
        if self.num_train % self.batch_size:
            raise needs("Training", "batch_size", f"a divisor of the {self.num_train} training rows", self.batch_size)
        if self.num_data is not None:
            check_integer("Training", "num_data", self.num_data, 1)
        if self.padding is not None:
            check_integer("Training", "padding", self.padding, 0)

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
        """Return it as values that JSON can hold; two trainings are the same when these are equal."""
        return _plain(self)


def make_training(method: str, stages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Training:
    """Build the training that plain settings describe, so that what is recorded is what is run.

    Args:
        method: its name.
        stages: for each its optimizer, lr, prior, temperature, and the optimizer's own settings.
        settings: `epochs`, one number for each stage; `decay` of the learning rate, as `decay` takes it, or None; `network` with
            its `kind`; and what `Training` takes.
    """
    rest = {name: value for name, value in settings.items() if name not in ("epochs", "decay", "network")}
    network = dict(settings["network"])
    built = []
    for stage, epochs in zip(stages, settings["epochs"], strict=True):
        own = {name: value for name, value in stage.items() if name not in ("optimizer", "lr", "prior", "temperature")}
        lr = decay(stage["lr"], epochs, **settings["decay"]) if settings["decay"] else constant(stage["lr"])
        prior = priors.from_plain(stage["prior"])
        prior = None if prior is None else priors.check_prior("Stage", prior)
        built.append(Stage(epochs, stage["optimizer"], lr, own, prior, stage["temperature"]))
    return Training(method, network=NETWORKS[network.pop("kind")](**network), stages=tuple(built), **rest)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _plain(to_plain(value))
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value
