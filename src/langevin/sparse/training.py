"""Training in stages: a loop of your own (`Run`), or one call (`train`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from langevin.chains.interrupts import Interrupts
from langevin.chains.meter import Progress, meter
from langevin.checks import check_function, check_integer, needs
from langevin.noise.address import MAX_SEED
from langevin.optim.base import LangevinOptimizer
from langevin.sparse.measure import masks_of, sparsity, weights_of
from langevin.sparse.stages import Stage
from langevin.targets.priors import Prior, SpikeSlab

__all__ = ["Epoch", "History", "Run", "train"]


@dataclass
class Epoch:
    """One epoch: what it runs with and, when it is over, what came of it.

    Example:
        >>> epoch = Epoch(number=0, stage=0, lr=0.1, temperature=1.0, prior=None)  # as `Run` yields it
        >>> epoch.lr, epoch.loss
        (0.1, nan)
    """

    number: int  # in the run, from 0
    stage: int  # which stage, from 0
    lr: float
    temperature: float
    prior: Prior | None
    steps: int = 0
    loss: float = math.nan  # mean over the steps
    kept: int | None = None  # as `Run.kept` says after its last step


class Run:
    """The epochs of all stages, for a training loop of your own.

    Iterating gives one `Epoch` after the other, with learning rate, temperature and prior set; `step` takes a batch's mean loss.

    Args:
        model: is trained in place.
        stages: one after the other; each starts an optimizer with empty averages.
        num_data: N of ``U = N * mean loss - log prior``, the size of the training set.
        seed: of the sampler's noise, the only thing random here.

    Example:
        >>> import torch
        >>> model, x = nn.Linear(2, 1), torch.ones(8, 2)
        >>> run = Run(model, [Stage(epochs=2, prior=None, lr=0.1)], num_data=8)
        >>> for epoch in run:
        ...     for batch in x.split(4):
        ...         _ = run.step(model(batch).square().mean())
        >>> [epoch.steps for epoch in run.epochs]
        [2, 2]
    """

    def __init__(self, model: nn.Module, stages: Sequence[Stage], *, num_data: int, seed: int = 0) -> None:
        """Check the arguments; nothing is changed yet."""
        weights_of("Run", model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise needs("Run", "model", "at least one parameter with requires_grad=True", type(model).__name__)
        self.model, self.stages = model, tuple(stages)
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise needs("Run", "stages", "at least one langevin.sparse.Stage", stages, TypeError)
        self.num_data = check_integer("Run", "num_data", num_data, 1)
        self.seed = check_integer("Run", "seed", seed, 0, MAX_SEED)
        self.epochs: list[Epoch] = []
        self.steps = 0
        self.optimizer: LangevinOptimizer | None = None
        self._held: list[tuple[Tensor, Tensor]] = []  # weights, and 1 where they may move

    def __iter__(self) -> Iterator[Epoch]:
        """Go through the epochs of all stages; once."""
        for number, stage in enumerate(self.stages):
            self._begin(stage)
            for k in range(stage.epochs):
                epoch = Epoch(len(self.epochs), number, stage.lr_at(k), stage.temperature_at(k), stage.prior_at(k))
                assert self.optimizer is not None
                for group in self.optimizer.param_groups:
                    group.update(lr=epoch.lr, temperature=epoch.temperature, prior=epoch.prior)
                self.epochs.append(epoch)
                yield epoch
                epoch.kept = self.kept

    def step(self, loss: Tensor) -> float:
        """Take the mean loss of a batch, one step of the sampler, and return the loss as a number.

        Raises:
            FloatingPointError: the loss is not finite; the model is as it was before.
        """
        if self.optimizer is None or not self.epochs:
            raise RuntimeError("Run.step needs to be called inside `for epoch in run:`")
        value, epoch = float(loss.detach()), self.epochs[-1]
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value} at epoch {epoch.number}, step {self.steps}: take a smaller lr")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for weight, mask in self._held:
            weight.mul_(mask)
        epoch.loss = (value + epoch.steps * (epoch.loss if epoch.steps else 0.0)) / (epoch.steps + 1)
        epoch.steps += 1
        self.steps += 1
        return value

    def _begin(self, stage: Stage) -> None:
        self.optimizer = None  # the last one is out of use: its noise may be continued
        self._held = []
        if stage.prune is not None:
            masks = masks_of("Stage", self.model, stage.prune)
            self._held = [(w, masks[name].to(w.dtype)) for name, w in weights_of("Stage", self.model).items()]
            for weight, mask in self._held:
                weight.mul_(mask)
        self.optimizer = stage.make_optimizer(self.model, num_data=self.num_data, seed=self.seed, step=self.steps)

    @property
    def kept(self) -> int | None:
        """Weights that are kept now: those not pruned, or above the prior's threshold; None where neither is there."""
        if self._held:
            return sum(int((weight != 0).sum()) for weight, _ in self._held)
        prior = self.epochs[-1].prior if self.epochs else None
        return sparsity(self.model, prior).kept if isinstance(prior, SpikeSlab) else None


@dataclass(frozen=True)
class History:
    """What `train` did: its epochs, and whether Ctrl-C ended it."""

    epochs: tuple[Epoch, ...]
    was_interrupted: bool

    def __str__(self) -> str:
        """Show the last epoch of every stage."""
        last = {epoch.stage: epoch for epoch in self.epochs}
        lines = [
            f"stage {stage + 1}: {sum(e.stage == stage for e in self.epochs)} epochs, loss {epoch.loss:.4g}"
            + ("" if epoch.kept is None else f", {epoch.kept:,} weights kept")
            for stage, epoch in last.items()
        ]
        return "\n".join([*lines, *(["interrupted: the model is as the last step left it"] if self.was_interrupted else [])])


def train(
    model: nn.Module,
    loader: Iterable[Any],
    stages: Sequence[Stage],
    *,
    num_data: int,
    loss_fn: Callable[[Any, Any], Tensor] = functional.cross_entropy,
    seed: int = 0,
    on_epoch: Callable[[Epoch], object] | None = None,
    progress: Progress = None,
) -> History:
    """Train a network in stages: a wide prior, a spike-and-slab prior, and what is left refined (docs/sparse.md).

    Ctrl-C ends the training between two steps: the model keeps what it has learnt, and the history says so.

    Args:
        model: is trained in place, in train mode; it and the batches' tensors are on the device of its first parameter.
        loader: batches ``(x, y)``, read once per epoch.
        stages: one after the other.
        num_data: the size of the training set.
        loss_fn: takes ``model(x)`` and y, and returns the mean loss: the mean negative log-likelihood.
        seed: of the sampler's noise; the order of the data is the loader's.
        on_epoch: is called after every epoch, for instance to evaluate, or to add a draw to a bank.
        progress: True, False, None (a bar on a terminal only), or a function of (epochs done, epochs in all).

    Returns:
        The epochs, with their losses.

    Example:
        >>> import torch
        >>> data = [(torch.ones(4, 2), torch.tensor([0, 1, 1, 1]))]
        >>> print(train(nn.Linear(2, 2), data, [Stage(epochs=3, prior=None, lr=0.1)], num_data=4).epochs[-1].steps)
        1
    """
    run = Run(model, stages, num_data=num_data, seed=seed)
    check_function("train", "loss_fn", loss_fn, "a function of outputs and targets", count=2)
    if on_epoch is not None:
        check_function("train", "on_epoch", on_epoch, "None or a function of an Epoch", count=1)
    device, total = next(model.parameters()).device, sum(stage.epochs for stage in run.stages)
    try:
        with Interrupts() as interrupts, meter(progress, "epochs", 0, total, unit="epoch") as tell:
            for epoch in run:
                model.train()
                for x, y in loader:
                    run.step(loss_fn(model(x.to(device)), y.to(device)))
                    interrupts.check()
                if not epoch.steps:
                    raise needs("train", "loader", "at least one batch in every epoch", loader)
                epoch.kept = run.kept
                tell(epoch.number + 1)
                if on_epoch is not None:
                    on_epoch(epoch)
    except KeyboardInterrupt:
        return History(tuple(run.epochs), True)
    return History(tuple(run.epochs), False)
