"""Sample the posterior of a network: Adam, a warm-up, draws; chains with a metric each.

The modes of a network differ in width, so every chain has its own diagonal metric, from the mean
squares of its gradients, ``V = E[g^2]``: on any target the mean curvature along each axis (plus,
for minibatches, the variance of their noise), and the V of the paper's ASGLD.

Chains run in segments of 64 compiled steps. Steps that are too large for a steep region throw a
chain far out of the typical set. Such a segment is rejected, as in Metropolis-Hastings: the chain
returns to where the segment began, with its velocity reversed.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from langevin.adaptation.work import begun
from langevin.diagnostics.running import energy_residuals
from langevin.execution import Runner, Trace, run_blocks
from langevin.kernels import Kernel, KernelState
from langevin.kernels.gradient_noise import FollowedNoise
from langevin.kernels.samplers import msgld
from langevin.kernels.scaled import Scaled
from langevin.targets import Batch, Posterior
from langevin.targets.gradients import GradientFn, compiled, full, minibatch, of_each_row
from langevin.targets.metric import Diagonal

__all__ = ["SEGMENT", "ChainDraws", "Data", "Settings", "run_chains"]

SEGMENT = 64  # steps, after which metric and step size are updated
_FORGET = 200  # steps over which mean squares are averaged at first
# Of V in the inverse mass matrix: 1 is optimal for constant curvature, 0 for unknown curvature.
_POWER = 0.75
_FIRST, _MOST = 0.02, 1.0  # step sizes in units of the metric
_CAUTION = 0.8  # factor of the step size after a rejection, and before sampling
_QUICK = 2000  # steps in which the step size may change quickly
_ERROR = 0.1  # energy error of a segment, over dim, that leads to rejection
_CHANCE = 6.0  # standard deviations by which the energy of some rows may rise by chance
_EXCESS = 0.1  # excess temperature of minibatches before the correction
_VELOCITIES = 2  # tensors of a kernel's state that change sign with time
_ADAM_RATE = 5e-3
_ROWS = 1000  # at most, for the first estimate of the curvature
# Aim of the mean squared energy error per step, over dim; the second in the last third of the
# warm-up.
_WORK, _CAREFUL_WORK = 2e-4, 2e-5
# Recording switches the validation of torch.distributions, which belongs to all threads.
_RECORDING = threading.Lock()

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """The length of each part."""

    adam_steps: int
    burn_in: int
    num_steps: int
    num_draws: int
    batch_size: int | None = None  # rows of a minibatch; None uses all rows at every step

    @property
    def segments(self) -> int:
        """The number of segments after the warm-up."""
        return max(self.num_draws, self.num_steps // SEGMENT)

    def shorter(self, part: int) -> Settings:
        """Return settings for half of Adam's steps and a part of the others, with all rows."""
        burn_in, num_steps = (max(1, n // part) for n in (self.burn_in, self.num_steps))
        num_draws = max(1, min(self.num_draws, num_steps // SEGMENT))
        return Settings(max(1, self.adam_steps // 2), burn_in, num_steps, num_draws)

    @property
    def total(self) -> int:
        """All steps of a chain."""
        return self.adam_steps + self.burn_in + self.segments * SEGMENT


class ChainDraws(NamedTuple):
    """The draws of some chains."""

    draws: Tensor  # (chains, draws, dim); fewer draws than in the settings after an interrupt
    rejected: Tensor  # share of segments that were rejected, (chains,)


def run_chains(
    posterior: Posterior,
    start_posterior: Posterior,
    data: Data,
    settings: Settings,
    chains: range,
    seed: int,
    start: Tensor | None = None,
    go_on: Callable[[int], bool] = lambda steps: True,
) -> ChainDraws:
    """Draw from the posterior of a network.

    Args:
        posterior: of the network.
        start_posterior: the same with a prior that has a mode, for Adam.
        data: inputs and targets.
        settings: the length of each part.
        chains: numbers of the chains; a chain is a function of (seed, number).
        seed: of all random numbers.
        start: initial positions by number of the chain; None for the network's initialisation.
        go_on: called with the number of steps taken, now and then; returns False to stop, which
            ends a run with the draws so far.
    """
    # Modules hold the parameters of the call that runs, so every thread needs its own.
    posterior, start_posterior = copy.deepcopy((posterior, start_posterior))
    if start is None:
        position = posterior.init(len(chains), seed, first_chain=chains.start)
    else:
        position = start[chains.start : chains.stop]
    size, done = settings.batch_size, settings.adam_steps
    position = _descend(start_posterior, data, position, settings, chains, seed, go_on)
    run: _Full | _Minibatch
    with _RECORDING:
        squares = _fisher_information(posterior, data, position)
        if size is None:
            run = _Full(posterior, full(posterior, data), position, squares, chains, seed)
        else:
            run = _Minibatch(posterior, data, size, position, squares, chains, seed)
        run.adapt(run.advance(), 0, is_early=True)
    for warm in range(SEGMENT, settings.burn_in, SEGMENT):
        if not go_on(done + warm):
            break
        run.adapt(run.advance(), warm, is_early=warm < 2 * settings.burn_in / 3)
    run.begin_sampling()
    draws, count, done = list[Tensor](), settings.segments, done + settings.burn_in
    kept = {count * (k + 1) // settings.num_draws - 1 for k in range(settings.num_draws)}
    for segment in range(count):
        if not go_on(done + segment * SEGMENT):
            break
        run.advance()
        if segment in kept:
            draws.append(run.state.position)
    found = torch.stack(draws, 1) if draws else position[:, None][:, :0]
    return ChainDraws(found, run.rejected / max(1, run.advanced))


def _descend(
    posterior: Posterior,
    data: Data,
    position: Tensor,
    settings: Settings,
    chains: range,
    seed: int,
    go_on: Callable[[int], bool],
) -> Tensor:
    """Minimise the energy by Adam, all chains at once, with cosine annealing."""
    size = settings.batch_size
    if size is None:
        gradient_fn = full(posterior, data)
    else:
        gradient_fn = minibatch(posterior, data, size, seed=seed, chains=chains)
    gradient_fn = compiled(gradient_fn, len(chains))
    with _RECORDING:
        gradient_fn(position, 0)
    position = position.clone().requires_grad_()
    optimizer = torch.optim.Adam([position], lr=_ADAM_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.adam_steps))
    for step in range(settings.adam_steps):
        if step % SEGMENT == 0 and not go_on(step):
            break
        position.grad = gradient_fn(position.detach(), step).gradient / posterior.num_data
        optimizer.step()
        schedule.step()
    return position.detach()


def _fisher_information(posterior: Posterior, data: Data, position: Tensor) -> Tensor:
    """Return the curvature along each axis, from the squared gradients of single rows."""
    size = min(len(data[0]), _ROWS)
    rows = torch.arange(size) * len(data[0]) // size
    squares = [
        of_each_row(posterior, data, rows, at[None]).square().sum(-2).reshape(1, -1)
        for at in position
    ]
    return torch.cat(squares) / (len(data[0]) * size) + _prior_curvature(posterior, position)


def _prior_curvature(posterior: Posterior, position: Tensor) -> Tensor:
    """Return the curvature of the prior along each axis, given the scales of the layers."""
    at = torch.where(position == 0, torch.full_like(position, 1e-6), position)
    return posterior.prior.gradient(at) / at


class _Segments(ABC):
    """Hold the state of some chains, and advance them by one segment at a time.

    Args:
        posterior: of the network.
        gradient_fn: of this posterior.
        position: initial positions, (chains, dim).
        squares: an estimate of the mean squares of gradients, (chains, dim).
        chains: numbers of the chains.
        seed: of all random numbers.
    """

    beta: float  # share of the velocity that remains after a step
    bias = 4000.0  # a; a larger bias means a smaller share of fresh noise at every step
    first_step: float
    noise: FollowedNoise | None = None  # of the gradient, for which steps are corrected

    def __init__(
        self,
        posterior: Posterior,
        gradient_fn: GradientFn,
        position: Tensor,
        squares: Tensor,
        chains: range,
        seed: int,
    ) -> None:
        """See the class."""
        self.posterior, self.gradient_fn = posterior, gradient_fn
        self.squares, self.chains, self.seed = squares, chains, seed
        self.step = position.new_full((len(chains), 1), self.first_step)
        self.runner = Runner(self.kernel(), gradient_fn, True, adjustable=True, is_silent=True)
        self.state = self.kernel().init(position)
        self.rejected, self.advanced = torch.zeros(len(chains)), 0

    @abstractmethod
    def stays(self, trace: Trace) -> Tensor:
        """Return whether each chain is still in the typical set after a segment, (chains,)."""

    @abstractmethod
    def new_squares(self, trace: Trace) -> Tensor:
        """Return the estimate of the mean squares from one segment, (chains, dim)."""

    @property
    def scale(self) -> Tensor:
        """The width of a step along each axis, (chains, dim)."""
        scale = self.squares.clamp(min=1e-12) ** (-_POWER / 2)
        return self.step * scale / (scale.square() * self.squares).mean(-1, keepdim=True).sqrt()

    def kernel(self) -> Kernel:
        """Return invariant MSGLD whose velocity moves by one unit of the current scale."""
        step_size = (1 + self.beta) / (2 * self.bias * (1 - self.beta))
        inner = msgld(
            step_size, bias_factor=self.bias, beta=self.beta, invariant=True, noise=self.noise
        )
        return Scaled.of(inner, Diagonal(self.scale))

    def advance(self) -> Trace:
        """Run one segment and reject it for chains that left; `accepted` holds the others."""
        start, kernel = self.state, self.kernel()
        self.runner.adjust(kernel, self.gradient_fn)
        (trace,) = run_blocks(
            kernel, self.gradient_fn, start, runner=self.runner,
            seed=self.seed, chains=self.chains, num_steps=SEGMENT,
        )  # fmt: skip
        stays = self.stays(trace) & torch.isfinite(trace.state.position).all(-1)
        self.rejected, self.advanced = self.rejected + ~stays, self.advanced + 1
        self.accepted = accepted = stays[:, None]
        self.step = torch.where(accepted, self.step, _CAUTION * self.step)
        # A rejected chain turns round: its velocities change sign, estimates of the noise do not.
        signs = [-1.0] * _VELOCITIES + [1.0] * (len(start.tensors) - _VELOCITIES)
        memory = tuple(
            torch.where(accepted, new, sign * old)
            for new, old, sign in zip(trace.state.tensors, start.tensors, signs, strict=True)
        )
        position = torch.where(accepted, trace.state.position, start.position)
        self.state = KernelState(position, memory, trace.state.step)
        return trace

    def adapt(self, trace: Trace, done: int, is_early: bool) -> None:
        """Update the metrics of accepted chains from a segment, after `done` steps."""
        weight = 1 - (1 - 1 / (_FORGET + done / 10)) ** SEGMENT
        found = self.squares.lerp(self.new_squares(trace), weight)
        self.squares = torch.where(self.accepted, found, self.squares)

    def begin_sampling(self) -> None:
        """Start to count rejections; metrics and step sizes are fixed from here on."""
        self.rejected, self.advanced = torch.zeros_like(self.rejected), 0


class _Full(_Segments):
    """Run segments with the gradient over all rows, and adapt the step size to energy errors."""

    beta = 0.995  # velocities decorrelate in 200 steps
    first_step = _FIRST

    @override
    def stays(self, trace: Trace) -> Tensor:
        # The energy error of each step as in Verlet's method: the residual, and the change of the
        # shadow energy, which grows before a step is unstable.
        shadow = (self.scale * trace.gradients).square().sum(-1).diff(dim=0) / 8
        self.errors = energy_residuals(begun(trace), trace.energies, trace.gradients) + shadow
        # In hundreds of dimensions some error is harmless; that of unstable steps is far larger.
        # NaN is not below the limit.
        return self.errors.cumsum(0).amax(0) < 30.0 + _ERROR * trace.positions.shape[-1]

    @override
    def new_squares(self, trace: Trace) -> Tensor:
        return trace.gradients.square().mean(0)

    @override
    def adapt(self, trace: Trace, done: int, is_early: bool) -> None:
        super().adapt(trace, done, is_early)
        aim = (_WORK if is_early else _CAREFUL_WORK) * self.state.position.shape[-1]
        growth = (aim / self.errors.square().mean(0)[:, None].clamp(min=1e-30)) ** (1 / 6)
        most = 1.5 if done < _QUICK else 1.1
        step = self.step * growth.clamp(1 / most, most)
        self.step = torch.where(self.accepted, step, self.step).clamp(max=_MOST)

    @override
    def begin_sampling(self) -> None:
        super().begin_sampling()
        self.step *= _CAUTION


class _Minibatch(_Segments):
    """Run segments with minibatch gradients, corrected for their noise (docs/theory.md, section 6).

    The variance of the noise is estimated along each axis, and an elementwise correction removes
    about half of the excess temperature. So the step size is chosen for an excess temperature ρ of
    a tenth before the correction: ``sqrt(4 ρ (1 - β) / (1 + β))``, in units of the noise and the
    prior's curvature, which replace V here.
    """

    beta = 0.98
    first_step = (4 * _EXCESS * (1 - beta) / (1 + beta)) ** 0.5
    noise = FollowedNoise(smoothing=0.998)

    def __init__(
        self,
        posterior: Posterior,
        data: Data,
        batch_size: int,
        position: Tensor,
        squares: Tensor,
        chains: range,
        seed: int,
    ) -> None:
        """See the class."""
        gradient_fn = minibatch(
            posterior, data, batch_size, seed=seed, chains=chains, batches="white"
        )
        rows = torch.arange(batch_size) * len(data[0]) // batch_size
        some = Batch(tuple(column[rows] for column in data), len(data[0]), per_chain=False)
        evaluate = GradientFn(lambda steps: (), lambda at, drawn: posterior.evaluate(at, some))
        self.some_energy, self.share = compiled(evaluate, len(chains)), some.scale
        # In a well-specified model the covariance of the noise is N / n times the curvature.
        squares = squares * (1 + self.share)
        super().__init__(posterior, gradient_fn, position, squares, chains, seed)

    @override
    def stays(self, trace: Trace) -> Tensor:
        # Energies of different minibatches are not comparable; those of the same rows before and
        # after a segment are.
        before, after = (
            self.some_energy(at.position, 0).energy for at in (trace.before, trace.state)
        )
        dim, share = trace.positions.shape[-1], self.share
        return after - before < 30.0 + _ERROR * dim + _CHANCE * (share * dim) ** 0.5

    @override
    def new_squares(self, trace: Trace) -> Tensor:
        # Successive gradients differ by noise only, also during the warm-up; parameters without
        # noise have a prior.
        noise = trace.gradients.diff(dim=0).square().mean(0) / 2
        return noise + _prior_curvature(self.posterior, trace.state.position)

    @override
    def adapt(self, trace: Trace, done: int, is_early: bool) -> None:
        before = self.scale
        super().adapt(trace, done, is_early)
        ratio = self.scale / before  # the kernel's noise estimates are in units of the scale
        velocity, passing, variance, square, last = self.state.tensors
        memory = (velocity, passing, variance * ratio**2, square * ratio**2, last * ratio)
        self.state = self.state._replace(tensors=memory)
