"""Chains of a network's posterior: an ensemble by Adam, a burn-in that learns a scale for each chain, then draws.

The modes of a network differ in their widths, so every chain has a scale of its own. It comes from the mean squares of the
gradients on the way, ``V = E[g^2]``, which on any target is the mean curvature along each axis: the V of the paper's ASGLD. The
burn-in learns it; draws are made with the scale as it was at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.engines import Trace, run_blocks
from langevin.gradients import GradientFn, full, of_each_row
from langevin.kernels import Kernel, KernelState
from langevin.kernels.scaled import Scaled
from langevin.samplers import msgld
from langevin.scales import Diagonal
from langevin.targets import Posterior
from langevin.trust import energy_residuals
from langevin.tuning.work import begun

__all__ = ["Explored", "Settings", "explore"]

_BETA, _BIAS = 0.995, 4000.0  # a velocity that lasts 200 steps; the share of its noise that is made anew is small
_BLOCK = 64  # steps after which scales are learnt anew
_FORGET = 200  # steps over which mean squares are taken at first
_POWER = 0.5  # of V in the inverse mass matrix, as in Adam: 1 is right where curvature stands still, 0 where nothing is known
_FIRST, _MOST = 0.02, 1.0  # step sizes in units of the scale
_CAUTION = 0.8  # what a step size is multiplied by before draws are taken, and where a stretch is undone
_QUICK = 2000  # steps in which the step size may change quickly
_ERROR = 0.1  # of the energy over a stretch, as a share of dim, from which on it is undone
_ROWS = 1000  # at most, of which the first curvature is taken


@dataclass(frozen=True)
class Settings:
    """How long each part takes, and how careful it is."""

    adam_steps: int = 2000
    adam_rate: float = 5e-3
    burn_in: int = 20_000
    num_steps: int = 10_000
    num_draws: int = 50
    work: float = 2e-4  # mean square of the energy error of a step, over dim, that sets the step size at first
    careful_work: float = 2e-5  # the same in the last third of the burn-in


class Explored(NamedTuple):
    """What chains left behind."""

    draws: Tensor  # (chains, draws, dim)
    energies: Tensor  # of them, (chains, draws)
    undone: Tensor  # stretches of steps that led out of the posterior, (chains,)
    stretches: int  # in all, of the draws


def explore(
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    settings: Settings,
    *,
    chains: range,
    seed: int,
    start: Tensor | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Explored:
    """Draw from the posterior of a network.

    Args:
        posterior: of the network.
        data: inputs and targets.
        settings: how long each part takes.
        chains: their numbers; a chain is a function of (seed, number).
        seed: of all that is random.
        start: where the chains begin, (chains, dim); None for the network's own initialisation.
        progress: is told the share of the work that is done.
    """
    if start is None:
        start = posterior.init(len(chains), seed, first_chain=chains.start)
    gradient_fn = full(posterior, data)
    total = settings.adam_steps + settings.burn_in + settings.num_steps
    position = _descend(gradient_fn, start, posterior.num_data, settings, lambda done: progress(done / total))
    walk = _Walk(gradient_fn, position, _first_squares(posterior, data, position), chains, seed)
    for done in range(0, settings.burn_in, _BLOCK):
        is_early = done < 2 * settings.burn_in / 3
        walk.learn(walk.go(), settings.work if is_early else settings.careful_work, done)
        progress((settings.adam_steps + done) / total)
    walk.undone.zero_()
    walk.step *= _CAUTION
    draws, energies = [], []
    stretches = max(settings.num_draws, settings.num_steps // _BLOCK)
    kept = {stretches * (k + 1) // settings.num_draws - 1 for k in range(settings.num_draws)}
    for done in range(stretches):
        walk.go()
        if done in kept:
            draws.append(walk.state.position)
            energies.append(walk.energy)
        progress((settings.adam_steps + settings.burn_in + done * _BLOCK) / total)
    return Explored(torch.stack(draws, 1), torch.stack(energies, 1), walk.undone, stretches)


def _kernel(scale: Tensor) -> Kernel:
    """Return the invariant MSGLD in a scale, with the step size at which its velocity moves by one unit of the scale."""
    step_size = (1 + _BETA) / (2 * _BIAS * (1 - _BETA))
    return Scaled.of(msgld(step_size, bias_factor=_BIAS, beta=_BETA, invariant=True), Diagonal(scale))


def _descend(
    gradient_fn: GradientFn, position: Tensor, num_data: int, settings: Settings, progress: Callable[[int], None]
) -> Tensor:
    """Go downhill with Adam, all chains at once, with a rate that falls to zero along a cosine."""
    position = position.clone().requires_grad_()
    optimizer = torch.optim.Adam([position], lr=settings.adam_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.adam_steps))
    for step in range(settings.adam_steps):
        position.grad = gradient_fn(position.detach(), step).gradient / num_data
        optimizer.step()
        schedule.step()
        if step % _BLOCK == 0:
            progress(step)
    return position.detach()


def _first_squares(posterior: Posterior, data: tuple[Tensor, Tensor], position: Tensor) -> Tensor:
    """Return the curvature along each axis at the modes, by the squares of single rows' gradients (the Fisher information)."""
    size = min(len(data[0]), _ROWS)
    rows = torch.arange(size) * len(data[0]) // size
    squares = [of_each_row(posterior, data, rows, at[None]).square().sum(-2).reshape(1, -1) for at in position]
    prior = posterior.prior.gradient(torch.ones_like(position[:1]))
    return torch.cat(squares) / (len(data[0]) * size) + prior


class Stretch(NamedTuple):
    """Some steps of all chains."""

    trace: Trace
    keep: Tensor  # whether a chain stayed in the posterior, (chains, 1)
    work: Tensor  # mean square of the energy error of a step over dim, (chains, 1)


class _Walk:
    """Chains that walk in stretches of steps, each in its own scale; a stretch that leads out of the posterior is undone.

    A step that is too large where the energy is steep throws a chain out, from where it is long in coming back. The chain then
    stays where the stretch began, as a proposal that Metropolis and Hastings would have rejected leaves it.
    """

    def __init__(self, gradient_fn: GradientFn, position: Tensor, squares: Tensor, chains: range, seed: int) -> None:
        """Stand still at `position`, where the mean squares of gradients will be `squares`."""
        self.gradient_fn, self.squares, self.chains, self.seed = gradient_fn, squares, chains, seed
        self.step = position.new_full((len(chains), 1), _FIRST)
        self.state = self.kernel().init(position)
        self.energy = gradient_fn(position, 0).energy
        self.undone = torch.zeros(len(chains), dtype=torch.int64)

    @property
    def scale(self) -> Tensor:
        """The width of a step along each axis, (chains, dim)."""
        return self.step * _unit_scale(self.squares)

    def kernel(self) -> Kernel:
        """Return the sampler as it is now."""
        return _kernel(self.scale)

    def go(self) -> Stretch:
        """Take a stretch of steps, and undo it for the chains in which the error of the energy shows that it is no trajectory."""
        start = self.state
        (trace,) = run_blocks(self.kernel(), self.gradient_fn, start, seed=self.seed, chains=self.chains, num_steps=_BLOCK)
        # The error of the energy over each step, as Verlet has it: the residual, and what shows before a step is unstable.
        shadow = (self.scale * trace.gradients).square().sum(-1).diff(dim=0) / 8
        errors = energy_residuals(begun(trace), trace.energies, trace.gradients) + shadow
        # Of a trajectory in hundreds of dimensions some error is no harm; a step that is unstable errs by far more than this.
        allowed = 30.0 + _ERROR * trace.positions.shape[-1]
        good = (errors.cumsum(0).amax(0) < allowed) & torch.isfinite(trace.state.position).all(-1)  # NaN is not below
        self.undone += ~good
        keep = good[:, None]
        self.step = torch.where(keep, self.step, _CAUTION * self.step)  # a chain in a steep place goes on with smaller steps
        self.state = KernelState(
            torch.where(keep, trace.state.position, start.position),
            tuple(torch.where(keep, new, -old) for new, old in zip(trace.state.memory, start.memory, strict=True)),
            trace.state.step,
        )
        self.energy = torch.where(good, trace.energies[-1], self.energy)
        return Stretch(trace, keep, errors.square().mean(0)[:, None] / trace.positions.shape[-1])

    def learn(self, stretch: Stretch, work: float, done: int) -> None:
        """Learn scale and step size from a stretch, where it was not undone."""
        growth = (work / stretch.work.clamp(min=1e-30)) ** (1 / 6)
        most = 1.5 if done < _QUICK else 1.1
        self.step = torch.where(stretch.keep, self.step * growth.clamp(1 / most, most), self.step).clamp(max=_MOST)
        weight = 1 - (1 - 1 / (_FORGET + done / 10)) ** _BLOCK
        seen = self.squares.lerp(stretch.trace.gradients.square().mean(0), weight)
        self.squares = torch.where(stretch.keep, seen, self.squares)


def _unit_scale(squares: Tensor) -> Tensor:
    """Return ``V^(-1/4)``, in units in which the mean curvature of each chain is one."""
    scale = squares.clamp(min=1e-12) ** (-_POWER / 2)
    return scale / (scale.square() * squares).mean(-1, keepdim=True).sqrt()
