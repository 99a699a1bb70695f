"""Chains that walk in stretches of steps, each in its own scale; a stretch that leads out of the posterior is undone.

The modes of a network differ in their widths, so every chain has a scale of its own. It comes from the mean squares of the
gradients on the way, ``V = E[g^2]``, which on any target is the mean curvature along each axis (and, of minibatches, their noise
besides): the V of the paper's ASGLD.

A step that is too large where the energy is steep throws a chain out, from where it is long in coming back. The chain then stays
where the stretch began, as a proposal that Metropolis and Hastings would have rejected leaves it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from langevin.engines import Trace, run_blocks
from langevin.estimators.scales import FoundScales
from langevin.gradient_noise import FollowedNoise
from langevin.gradients import GradientFn, full, minibatch
from langevin.kernels import Kernel, KernelState
from langevin.kernels.scaled import Scaled
from langevin.samplers import msgld
from langevin.scales import Diagonal
from langevin.targets import Batch, Posterior
from langevin.trust import energy_residuals
from langevin.tuning.work import begun

__all__ = ["BLOCK", "ExactWalk", "NoisyWalk", "Walk"]

BLOCK = 64  # steps of a stretch, after which scales are learnt anew
_FORGET = 200  # steps over which mean squares are taken at first
_POWER = 0.75  # of V in the inverse mass matrix: 1 is right where curvature stands still, 0 where nothing is known
_FIRST, _MOST = 0.02, 1.0  # step sizes in units of the scale
_CAUTION = 0.8  # what a step size is multiplied by where a stretch is undone, and before draws are taken
_QUICK = 2000  # steps in which the step size may change quickly
_ERROR = 0.1  # of the energy over a stretch, as a share of dim, from which on it is undone
_CHANCE = 6.0  # standard deviations that the energy of some rows may rise by chance
_HEAT = 0.1  # share of the temperature that minibatches may add before it is taken off again
_VELOCITIES = 2  # of a kernel's memory, which comes first

Data = tuple[Tensor, Tensor]


class Walk(ABC):
    """Chains on their way.

    Args:
        posterior: of the network; where its prior is `FoundScales`, scales are drawn anew before every stretch.
        position: where the chains stand, (chains, dim).
        squares: what the mean squares of gradients will be, as far as is known, (chains, dim).
        chains: their numbers.
        seed: of all that is random.
    """

    beta: float  # share of the velocity that a step leaves
    bias: float  # a; the larger, the smaller the share of the noise that is made anew at every step

    def __init__(self, posterior: Posterior, position: Tensor, squares: Tensor, chains: range, seed: int) -> None:
        """See the class."""
        self.posterior, self.squares, self.chains, self.seed = posterior, squares, chains, seed
        self.step = position.new_full((len(chains), 1), self.first_step)
        self.state = self.kernel().init(position)
        self.energy = self.gradient_fn(position, 0).energy
        self.undone = torch.zeros(len(chains), dtype=torch.int64)

    # ---- what a subclass says

    gradient_fn: GradientFn
    first_step: float

    @abstractmethod
    def stays(self, trace: Trace) -> Tensor:
        """Say of each chain whether a stretch left it in the posterior, (chains,)."""

    def seen_squares(self, trace: Trace) -> Tensor:
        """Return what a stretch says of the squares, (chains, dim)."""
        return trace.gradients.square().mean(0)

    @property
    def noise(self) -> FollowedNoise | None:
        """The noise of the gradient that steps absorb."""
        return None

    # ---- walking

    @property
    def scale(self) -> Tensor:
        """The width of a step along each axis, (chains, dim)."""
        scale = self.squares.clamp(min=1e-12) ** (-_POWER / 2)
        return self.step * scale / (scale.square() * self.squares).mean(-1, keepdim=True).sqrt()

    def kernel(self) -> Kernel:
        """Return the invariant MSGLD as it is now, at the step size at which its velocity moves by one unit of the scale."""
        step_size = (1 + self.beta) / (2 * self.bias * (1 - self.beta))
        inner = msgld(step_size, bias_factor=self.bias, beta=self.beta, invariant=True, noise=self.noise)
        return Scaled.of(inner, Diagonal(self.scale))

    def go(self) -> Trace:
        """Take a stretch of steps, and undo it for the chains that it leads out of the posterior; `kept` says for which not."""
        start, prior = self.state, self.posterior.prior
        if isinstance(prior, FoundScales):
            self.posterior.prior = prior.redrawn(start.position, seed=self.seed, chains=self.chains, step=start.step)
        (trace,) = run_blocks(self.kernel(), self.gradient_fn, start, seed=self.seed, chains=self.chains, num_steps=BLOCK)
        good = self.stays(trace) & torch.isfinite(trace.state.position).all(-1)
        self.undone += ~good
        self.kept = good[:, None]
        self.energy = torch.where(good, trace.energies[-1], self.energy)
        self.step = torch.where(self.kept, self.step, _CAUTION * self.step)  # in a steep place it goes on with smaller steps
        # A chain that stays where it was turns round: its velocities change their sign, what it knows of noise does not.
        signs = [-1.0] * _VELOCITIES + [1.0] * (len(start.memory) - _VELOCITIES)
        memory = [
            torch.where(self.kept, new, sign * old) for new, old, sign in zip(trace.state.memory, start.memory, signs, strict=True)
        ]
        self.state = KernelState(torch.where(self.kept, trace.state.position, start.position), tuple(memory), trace.state.step)
        return trace

    def learn(self, trace: Trace, done: int) -> None:
        """Learn the scale from a stretch, where it was not undone, after `done` steps."""
        weight = 1 - (1 - 1 / (_FORGET + done / 10)) ** BLOCK
        seen = self.squares.lerp(self.seen_squares(trace), weight)
        self.squares = torch.where(self.kept, seen, self.squares)

    def settle(self) -> None:
        """Draws begin: what was learnt stays as it is."""
        self.undone.zero_()


class ExactWalk(Walk):
    """With the gradient of all rows, whose energies say how large a step may be."""

    beta, bias = 0.995, 4000.0  # a velocity that lasts 200 steps
    first_step = _FIRST

    def __init__(self, posterior: Posterior, data: Data, position: Tensor, squares: Tensor, chains: range, seed: int) -> None:
        """As `Walk`, with all rows."""
        self.gradient_fn = full(posterior, data)
        super().__init__(posterior, position, squares, chains, seed)

    @override
    def stays(self, trace: Trace) -> Tensor:
        # The error of the energy over each step, as Verlet has it: the residual, and what shows before a step is unstable.
        shadow = (self.scale * trace.gradients).square().sum(-1).diff(dim=0) / 8
        self.errors = energy_residuals(begun(trace), trace.energies, trace.gradients) + shadow
        # Of a trajectory in hundreds of dimensions some error is no harm; a step that is unstable errs by far more than this.
        return self.errors.cumsum(0).amax(0) < 30.0 + _ERROR * trace.positions.shape[-1]  # NaN is not below

    def find_step(self, work: float, done: int) -> None:
        """Go to the step size at which the mean square of a step's energy error, over dim, is `work`."""
        dim = self.state.position.shape[-1]
        growth = (work * dim / self.errors.square().mean(0)[:, None].clamp(min=1e-30)) ** (1 / 6)
        most = 1.5 if done < _QUICK else 1.1
        self.step = torch.where(self.kept, self.step * growth.clamp(1 / most, most), self.step).clamp(max=_MOST)

    @override
    def settle(self) -> None:
        super().settle()
        self.step *= _CAUTION


class NoisyWalk(Walk):
    """With gradients of minibatches, whose noise the steps absorb (docs/theory.md, section 6).

    The noise is followed along each axis, and an elementwise correction takes off about half of the heat that it brings. So steps
    are so small that the heat ρ is a tenth of the temperature in the mean: in units of the noise (and the prior's curvature), which
    take the place of V here, the step size is ``sqrt(4 ρ (1 - β) / (1 + β))``.

    Args:
        posterior: of the network.
        data: inputs and targets.
        batch_size: rows of a minibatch.
        position: as in `Walk`.
        squares: as in `Walk`.
        chains: as in `Walk`.
        seed: as in `Walk`.
    """

    beta, bias = 0.98, 4000.0
    first_step = (4 * _HEAT * (1 - beta) / (1 + beta)) ** 0.5
    noise = FollowedNoise(smoothing=0.998)

    def __init__(
        self, posterior: Posterior, data: Data, batch_size: int, position: Tensor, squares: Tensor, chains: range, seed: int
    ) -> None:
        """See the class."""
        self.gradient_fn = minibatch(posterior, data, batch_size, seed=seed, chains=chains, batches="white")
        rows = torch.arange(batch_size) * len(data[0]) // batch_size
        self.some = Batch(tuple(column[rows] for column in data), len(data[0]), per_chain=False)
        super().__init__(
            posterior, position, squares * (1 + self.some.scale), chains, seed
        )  # in a model that is right Σ is (N/n) K

    @override
    def stays(self, trace: Trace) -> Tensor:
        # Energies of minibatches say little, those of the same rows before and after a stretch whether it ran off.
        before, after = (self.posterior.evaluate(at.position, self.some).energy for at in (trace.before, trace.state))
        dim, share = trace.positions.shape[-1], self.some.scale
        return after - before < 30.0 + _ERROR * dim + _CHANCE * (share * dim) ** 0.5

    @override
    def seen_squares(self, trace: Trace) -> Tensor:
        # Of successive gradients only the noise differs, also on the way to the posterior; what has no noise has a prior.
        noise = trace.gradients.diff(dim=0).square().mean(0) / 2
        return noise + self.posterior.prior.gradient(torch.ones_like(noise))

    @override
    def learn(self, trace: Trace, done: int) -> None:
        before = self.scale
        super().learn(trace, done)
        ratio = self.scale / before  # what is known of the noise is in units of the scale
        velocity, passing, variance, square, last = self.state.memory
        memory = (velocity, passing, variance * ratio**2, square * ratio**2, last * ratio)
        self.state = self.state._replace(memory=memory)
