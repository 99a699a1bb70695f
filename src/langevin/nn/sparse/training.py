"""Train in stages, each with its prior: by your own loop (`Run`) or in one call (`train`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from langevin import optim
from langevin.checks import check_function, check_integer, check_number, needs
from langevin.nn.sparse.weights import check_spike_slab, masks_of, sparsity, weights_of
from langevin.optim.base import LangevinOptimizer
from langevin.random.address import MAX_SEED
from langevin.sampling.interrupts import Interrupts
from langevin.sampling.progress import Progress, progress_bar
from langevin.targets.priors import Prior, SpikeSlab, check_prior

__all__ = ["Epoch", "History", "Run", "Stage", "anneal", "train"]

# ---- Stages


@dataclass(frozen=True)
class Annealed:
    """A spike-and-slab prior that changes over a stage; use `anneal` to build one."""

    start: SpikeSlab
    end: SpikeSlab
    share: float

    def __call__(self, epoch: int, epochs: int) -> SpikeSlab:
        """Return the prior of epoch 0, 1, ... of `epochs`."""
        done = min(1.0, epoch / max(1.0, self.share * (epochs - 1)))

        def between(function: Callable[[SpikeSlab], float]) -> float:
            start, end = function(self.start), function(self.end)
            return start + (end - start) * done

        log_odds = between(lambda p: math.log(p.slab_weight) - math.log1p(-p.slab_weight))
        slab_std = math.exp(between(lambda p: math.log(p.slab_std)))
        spike_std = math.exp(between(lambda p: math.log(p.spike_std)))
        return SpikeSlab(1 / (1 + math.exp(-log_odds)), slab_std, spike_std)


def anneal(start: SpikeSlab, end: SpikeSlab, *, share: float = 0.85) -> Annealed:
    """Return a prior that changes from one spike-and-slab prior to another over a stage.

    Both standard deviations, and the odds of the slab, change by a constant factor per epoch.

    Args:
        start: the prior of the first epoch.
        end: the prior of the last epochs.
        share: share of the stage's epochs after which the end is reached.

    Example:
        >>> start = SpikeSlab(slab_weight=1e-4, slab_std=1.0, spike_std=0.01)
        >>> end = SpikeSlab(slab_weight=1e-4, slab_std=1.0, spike_std=0.04)
        >>> [round(anneal(start, end, share=1.0)(epoch, 3).spike_std, 6) for epoch in range(3)]
        [0.01, 0.02, 0.04]
    """
    check_spike_slab("anneal", "start", start)
    check_spike_slab("anneal", "end", end)
    check_number("anneal", "share", share, "0 < share <= 1", lambda v: 0 < v <= 1)
    return Annealed(start, end, float(share))


@dataclass(frozen=True)
class Stage:
    """Epochs with one sampler.

    Args:
        epochs: number of epochs.
        prior: of all parameters; one of `langevin.priors`, None for none, or `anneal(...)`.
        lr: learning rate on the mean loss, as in SGD.
        end_lr: learning rate of the last epoch, approached by half a cosine; None keeps `lr`.
        temperature: 0 searches for the mode, 1 samples the posterior; the paper uses 1e-3 and 1e-5.
        end_temperature: temperature of the last epoch, as `end_lr`; None keeps `temperature`.
        prune: a prior or a threshold, as in `sparsity`: at the start of the stage, weights that are
            not kept are set to zero, and stay zero. The stage then samples the posterior of the
            other weights, given which are zero. None prunes nothing.
        optimizer: a name of `langevin.optim`.
        settings: arguments of the optimizer.
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
            what = "the name of an optimizer of langevin.optim"
            raise needs("Stage", "optimizer", what, self.optimizer)

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


# ---- Epochs


@dataclass
class Epoch:
    """One epoch: its settings and, afterwards, its results.

    Example:
        >>> epoch = Epoch(number=0, stage=0, lr=0.1, temperature=1.0, prior=None)  # from `Run`
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
    kept: int | None = None  # `Run.kept` after the last step


class Run:
    """The epochs of all stages, for your own training loop.

    Iteration yields one `Epoch` after the other, with learning rate, temperature and prior set;
    `step` takes a batch's mean loss.

    Args:
        model: trained in place.
        stages: one after the other; each starts a new optimizer.
        num_data: N of ``U = N * mean loss - log prior``, the size of the training set.
        seed: of the sampler's noise, the only source of randomness here.

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

    def __init__(
        self, model: nn.Module, stages: Sequence[Stage], *, num_data: int, seed: int = 0
    ) -> None:
        """Check the arguments; nothing is changed yet."""
        weights_of("Run", model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            what = "at least one parameter with requires_grad=True"
            raise needs("Run", "model", what, type(model).__name__)
        self.model, self.stages = model, tuple(stages)
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise needs("Run", "stages", "at least one langevin.nn.sparse.Stage", stages, TypeError)
        self.num_data = check_integer("Run", "num_data", num_data, 1)
        self.seed = check_integer("Run", "seed", seed, 0, MAX_SEED)
        self.epochs: list[Epoch] = []
        self.steps = 0
        self.optimizer: LangevinOptimizer | None = None
        self._pruned: list[tuple[Tensor, Tensor]] = []  # weights, and 1 where they may move

    def __iter__(self) -> Iterator[Epoch]:
        """Iterate over the epochs of all stages; once."""
        for number, stage in enumerate(self.stages):
            optimizer = self._start(stage)
            for k in range(stage.epochs):
                settings = stage.lr_at(k), stage.temperature_at(k), stage.prior_at(k)
                epoch = Epoch(len(self.epochs), number, *settings)
                for group in optimizer.param_groups:
                    group.update(lr=epoch.lr, temperature=epoch.temperature, prior=epoch.prior)
                self.epochs.append(epoch)
                yield epoch
                epoch.kept = self.kept

    def _start(self, stage: Stage) -> LangevinOptimizer:
        self.optimizer = None  # frees the last one: its noise may be continued
        self._pruned = []
        if stage.prune is not None:
            masks = masks_of("Stage", self.model, stage.prune)
            for name, weight in weights_of("Stage", self.model).items():
                mask = masks[name].to(weight.dtype)
                weight.mul_(mask)
                self._pruned.append((weight, mask))
        self.optimizer = getattr(optim, stage.optimizer)(
            [parameter for parameter in self.model.parameters() if parameter.requires_grad],
            lr=stage.lr, prior=stage.prior_at(0), temperature=stage.temperature,
            num_data=self.num_data, seed=self.seed, **stage.settings,
        )  # fmt: skip
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["step"] = self.steps  # two stages never share noise
        return self.optimizer

    def step(self, loss: Tensor) -> float:
        """Take one step of the sampler on the mean loss of a batch; return the loss as a number.

        Raises:
            FloatingPointError: the loss is not finite; the model is not changed.
        """
        if self.optimizer is None or not self.epochs:
            raise RuntimeError("Run.step needs to be called inside `for epoch in run:`")
        value, epoch = float(loss.detach()), self.epochs[-1]
        if not math.isfinite(value):
            where = f"epoch {epoch.number}, step {self.steps}"
            raise FloatingPointError(f"the loss is {value} at {where}: use a smaller lr")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for weight, mask in self._pruned:
            weight.mul_(mask)
        total = epoch.steps * epoch.loss if epoch.steps else 0.0
        epoch.loss = (value + total) / (epoch.steps + 1)
        epoch.steps += 1
        self.steps += 1
        return value

    @property
    def kept(self) -> int | None:
        """Number of weights not pruned, or above the prior's threshold; None without either."""
        if self._pruned:
            return sum(int((weight != 0).sum()) for weight, _ in self._pruned)
        prior = self.epochs[-1].prior if self.epochs else None
        return sparsity(self.model, prior).kept if isinstance(prior, SpikeSlab) else None


@dataclass(frozen=True)
class History:
    """The epochs of `train`, and whether Ctrl-C ended it."""

    epochs: tuple[Epoch, ...]
    was_interrupted: bool

    def __str__(self) -> str:
        """Return a line about the last epoch of every stage."""
        lines = []
        for stage, epoch in {epoch.stage: epoch for epoch in self.epochs}.items():
            count = sum(e.stage == stage for e in self.epochs)
            kept = "" if epoch.kept is None else f", {epoch.kept:,} weights kept"
            lines.append(f"stage {stage + 1}: {count} epochs, loss {epoch.loss:.4g}{kept}")
        if self.was_interrupted:
            lines.append("interrupted: the model is in the state of the last step")
        return "\n".join(lines)


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
    """Train a network in stages, such as wide prior, spike-and-slab prior, refinement.

    See docs/sparse.md. Ctrl-C ends the training between two steps: the model keeps its state, and
    the history has `was_interrupted`.

    Args:
        model: trained in place, in training mode; batches are moved to the device of its first
            parameter.
        loader: batches ``(x, y)``, iterated once per epoch.
        stages: one after the other.
        num_data: the size of the training set.
        loss_fn: takes ``model(x)`` and y, and returns the mean loss: the mean negative
            log-likelihood.
        seed: of the sampler's noise; the order of the data is the loader's.
        on_epoch: called after every epoch, for instance to evaluate, or to add a draw to a bank.
        progress: True, False, None (a bar on a terminal only), or a function of (epochs done,
            total epochs).

    Returns:
        The epochs, with their losses.

    Example:
        >>> import torch
        >>> data = [(torch.ones(4, 2), torch.tensor([0, 1, 1, 1]))]
        >>> stages = [Stage(epochs=3, prior=None, lr=0.1)]
        >>> print(train(nn.Linear(2, 2), data, stages, num_data=4).epochs[-1].steps)
        1
    """
    run = Run(model, stages, num_data=num_data, seed=seed)
    check_function("train", "loss_fn", loss_fn, "a function of outputs and targets", count=2)
    if on_epoch is not None:
        check_function("train", "on_epoch", on_epoch, "None or a function of an Epoch", count=1)
    device, total = next(model.parameters()).device, sum(stage.epochs for stage in run.stages)
    bar = progress_bar(progress, "epochs", 0, total, unit="epoch")
    try:
        with Interrupts() as interrupts, bar as report:
            for epoch in run:
                model.train()
                for x, y in loader:
                    run.step(loss_fn(model(x.to(device)), y.to(device)))
                    interrupts.check()
                if not epoch.steps:
                    raise needs("train", "loader", "at least one batch in every epoch", loader)
                epoch.kept = run.kept
                report(epoch.number + 1)
                if on_epoch is not None:
                    on_epoch(epoch)
    except KeyboardInterrupt:
        return History(tuple(run.epochs), True)
    return History(tuple(run.epochs), False)
