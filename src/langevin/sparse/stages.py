"""Stages of a training: some epochs under one prior, which may change from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from langevin import optim
from langevin.checks import check_integer, check_number, needs
from langevin.optim.base import LangevinOptimizer
from langevin.targets.priors import Prior, SpikeSlab, check_prior

__all__ = ["Annealed", "Stage", "anneal"]


@dataclass(frozen=True)
class Annealed:
    """A spike-and-slab prior on its way; use `anneal` to build one."""

    start: SpikeSlab
    end: SpikeSlab
    share: float

    def __call__(self, epoch: int, epochs: int) -> SpikeSlab:
        """Return the prior of an epoch, 0, 1, ..., of so many."""
        done = min(1.0, epoch / max(1.0, self.share * (epochs - 1)))
        first, last = (math.log(prior.slab_weight) - math.log1p(-prior.slab_weight) for prior in (self.start, self.end))
        slab_weight = 1 / (1 + math.exp(-_between(first, last, done)))
        slab_std, spike_std = (
            math.exp(_between(math.log(getattr(self.start, name)), math.log(getattr(self.end, name)), done))
            for name in ("slab_std", "spike_std")
        )
        return SpikeSlab(slab_weight, slab_std, spike_std)


def _between(start: float, end: float, done: float) -> float:
    return start + (end - start) * done


def anneal(start: SpikeSlab, end: SpikeSlab, *, share: float = 0.85) -> Annealed:
    """Make a prior that goes from one spike-and-slab prior to another over the epochs of a stage.

    Both standard deviations, and the odds of the slab, change by the same factor from epoch to epoch.

    Args:
        start: the prior of the first epoch.
        end: the prior of the last epochs.
        share: of the stage's epochs, after which the end is reached.

    Example:
        >>> start, end = (SpikeSlab(slab_weight=1e-4, slab_std=1.0, spike_std=s) for s in (0.01, 0.04))
        >>> [round(anneal(start, end, share=1.0)(epoch, 3).spike_std, 6) for epoch in range(3)]
        [0.01, 0.02, 0.04]
    """
    for name, prior in (("start", start), ("end", end)):
        if not isinstance(prior, SpikeSlab):
            raise needs("anneal", name, "a spike-and-slab prior, langevin.priors.spike_slab", prior, TypeError)
    return Annealed(start, end, check_number("anneal", "share", share, "0 < share <= 1", lambda v: 0 < v <= 1))


@dataclass(frozen=True)
class Stage:
    """Some epochs with one sampler.

    Args:
        epochs: how many.
        prior: on all parameters; one of `langevin.priors`, None for none, or `anneal(...)`.
        lr: learning rate on the mean loss, as in SGD.
        end_lr: that of the last epoch, reached along half a cosine; None keeps `lr`.
        temperature: 0 searches for the mode, 1 samples the posterior; the paper takes 1e-3 and 1e-5.
        end_temperature: that of the last epoch, reached as `end_lr` is; None keeps `temperature`.
        prune: a prior or a threshold, as in `sparsity`: when the stage begins weights that are not kept are set to zero, and they
            stay zero. What is sampled then is the posterior of the other weights, given which are zero. None prunes nothing.
        optimizer: a name of `langevin.optim`.
        settings: the optimizer's own.
    """

    epochs: int
    prior: Prior | Annealed | None
    lr: float
    end_lr: float | None = None
    temperature: float = 0.0
    end_temperature: float | None = None
    prune: SpikeSlab | float | None = None
    optimizer: str = "MSGLD"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values; the optimizer checks the rest."""
        check_integer("Stage", "epochs", self.epochs, 1)
        if self.prior is not None and not isinstance(self.prior, Annealed):
            check_prior("Stage", self.prior)
        for name in ("lr", "end_lr", "temperature", "end_temperature"):
            if getattr(self, name) is not None or not name.startswith("end"):
                check_number("Stage", name, getattr(self, name), ">= 0", lambda v: v >= 0)
        if self.optimizer not in optim.named.__all__:
            raise needs("Stage", "optimizer", "the name of an optimizer of langevin.optim", self.optimizer)

    def prior_at(self, epoch: int) -> Prior | None:
        """Return the prior of the stage's epoch 0, 1, ..."""
        return self.prior(epoch, self.epochs) if isinstance(self.prior, Annealed) else self.prior

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the stage's epoch."""
        return self._cosine(self.lr, self.end_lr, epoch)

    def temperature_at(self, epoch: int) -> float:
        """Return the temperature of the stage's epoch."""
        return self._cosine(self.temperature, self.end_temperature, epoch)

    def _cosine(self, start: float, end: float | None, epoch: int) -> float:
        if end is None:
            return start
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * epoch / max(1, self.epochs - 1)))

    def make_optimizer(self, model: nn.Module, *, num_data: int, seed: int, step: int) -> LangevinOptimizer:
        """Make the stage's optimizer; `step` is where its noise begins, so that two stages never share any."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        shared = {"prior": self.prior_at(0), "temperature": self.temperature, "num_data": num_data, "seed": seed}
        made: LangevinOptimizer = getattr(optim, self.optimizer)(parameters, lr=self.lr, **shared, **self.settings)
        for group in made.param_groups:
            group["step"] = step
        return made
