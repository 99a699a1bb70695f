"""Run chains in segments of 64 steps, each chain with its own diagonal metric.

The modes of a network differ in width, so every chain has its own scale, from the mean squares of
its gradients, ``V = E[g^2]``: on any target the mean curvature along each axis (plus, for
minibatches, the variance of their noise), and the V of the paper's ASGLD.

Steps that are too large for a steep region throw a chain far out of the typical set. Such segments
are rejected, as in Metropolis-Hastings: the chain returns to where the segment began.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from langevin.adaptation.work import begun
from langevin.diagnostics.running import energy_residuals
from langevin.execution import Trace, run_blocks
from langevin.kernels import Kernel, KernelState
from langevin.kernels.gradient_noise import FollowedNoise
from langevin.kernels.samplers import msgld
from langevin.kernels.scaled import Scaled
from langevin.tabular.model import LayerScales
from langevin.targets import Batch, Posterior
from langevin.targets.gradients import GradientFn, minibatch
from langevin.targets.metric import Diagonal

__all__ = ["BLOCK", "Data", "FullSegments", "MinibatchSegments", "Segments"]


BLOCK = 64  # steps of a segment, after which scales are updated
_FORGET = 200  # steps over which mean squares are averaged at first
# Of V in the inverse mass matrix: 1 is optimal for constant curvature, 0 for unknown curvature.
_POWER = 0.75
_FIRST, _MOST = 0.02, 1.0  # step sizes in units of the scale
_CAUTION = 0.8  # factor of the step size after a rejection, and before sampling
_QUICK = 2000  # steps in which the step size may change quickly
_ERROR = 0.1  # energy error of a segment, over dim, that leads to rejection
_CHANCE = 6.0  # standard deviations by which the energy of some rows may rise by chance
_EXCESS = 0.1  # excess temperature of minibatches before the correction
_VELOCITIES = 2  # tensors of a kernel's state that change sign with time

Data = tuple[Tensor, Tensor]


class Segments(ABC):
    """Hold the state of some chains, and advance them by one segment at a time.

    Args:
        posterior: of the network; scales of a `LayerScales` prior are drawn before each segment.
        gradient_fn: of this posterior.
        position: initial positions, (chains, dim).
        squares: an estimate of the mean squares of gradients, (chains, dim).
        chains: numbers of the chains.
        seed: of all random numbers.
    """

    beta: float  # share of the velocity that remains after a step
    bias: float  # a; a larger bias means a smaller share of fresh noise at every step
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
        self.state = self.kernel().init(position)
        self.energy = self.gradient_fn(position, 0).energy
        self.rejected = torch.zeros(len(chains), dtype=torch.int64)

    @abstractmethod
    def stays(self, trace: Trace) -> Tensor:
        """Return whether each chain is still in the typical set after a segment, (chains,)."""

    def new_squares(self, trace: Trace) -> Tensor:
        """Return the estimate of the mean squares from one segment, (chains, dim)."""
        return trace.gradients.square().mean(0)

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
        start, prior, chains, seed = self.state, self.posterior.prior, self.chains, self.seed
        if isinstance(prior, LayerScales):
            scales = prior.redrawn(start.position, seed=seed, chains=chains, step=start.step)
            self.posterior.prior = scales
        (trace,) = run_blocks(
            self.kernel(), self.gradient_fn, start, seed=seed, chains=chains, num_steps=BLOCK
        )
        accepted = self.stays(trace) & torch.isfinite(trace.state.position).all(-1)
        self.rejected += ~accepted
        self.accepted = accepted[:, None]
        self.energy = torch.where(accepted, trace.energies[-1], self.energy)
        self.step = torch.where(self.accepted, self.step, _CAUTION * self.step)
        # A rejected chain turns round: its velocities change sign, estimates of the noise do not.
        signs = [-1.0] * _VELOCITIES + [1.0] * (len(start.tensors) - _VELOCITIES)
        memory = [
            torch.where(self.accepted, new, sign * old)
            for new, old, sign in zip(trace.state.tensors, start.tensors, signs, strict=True)
        ]
        position = torch.where(self.accepted, trace.state.position, start.position)
        self.state = KernelState(position, tuple(memory), trace.state.step)
        return trace

    def adapt(self, trace: Trace, done: int) -> None:
        """Update the scales of accepted chains from a segment, after `done` steps."""
        weight = 1 - (1 - 1 / (_FORGET + done / 10)) ** BLOCK
        found = self.squares.lerp(self.new_squares(trace), weight)
        self.squares = torch.where(self.accepted, found, self.squares)

    def begin_sampling(self) -> None:
        """Start to count rejections; scales and step sizes are fixed from here on."""
        self.rejected.zero_()


class FullSegments(Segments):
    """Run segments with the gradient over all rows, and adapt the step size to energy errors."""

    beta, bias = 0.995, 4000.0  # velocities decorrelate in 200 steps
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

    def adapt_step(self, work: float, done: int) -> None:
        """Adapt step sizes so that the mean squared energy error per step, over dim, is `work`."""
        dim = self.state.position.shape[-1]
        growth = (work * dim / self.errors.square().mean(0)[:, None].clamp(min=1e-30)) ** (1 / 6)
        most = 1.5 if done < _QUICK else 1.1
        step = self.step * growth.clamp(1 / most, most)
        self.step = torch.where(self.accepted, step, self.step).clamp(max=_MOST)

    @override
    def begin_sampling(self) -> None:
        super().begin_sampling()
        self.step *= _CAUTION


class MinibatchSegments(Segments):
    """Run segments with minibatch gradients, corrected for their noise (docs/theory.md, section 6).

    The variance of the noise is estimated along each axis, and an elementwise correction removes
    about half of the excess temperature. So the step size is chosen for an excess temperature ρ of
    a tenth before the correction: ``sqrt(4 ρ (1 - β) / (1 + β))``, in units of the noise and the
    prior's curvature, which replace V here.

    Args:
        posterior: of the network.
        data: inputs and targets.
        batch_size: rows of a minibatch.
        position: as in `Segments`.
        squares: as in `Segments`.
        chains: as in `Segments`.
        seed: as in `Segments`.
    """

    beta, bias = 0.98, 4000.0
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
        self.some = Batch(tuple(column[rows] for column in data), len(data[0]), per_chain=False)
        # In a well-specified model the covariance of the noise is N / n times the curvature.
        squares = squares * (1 + self.some.scale)
        super().__init__(posterior, gradient_fn, position, squares, chains, seed)

    @override
    def stays(self, trace: Trace) -> Tensor:
        # Energies of different minibatches are not comparable; those of the same rows before and
        # after a segment are.
        before, after = (
            self.posterior.evaluate(at.position, self.some).energy
            for at in (trace.before, trace.state)
        )
        dim, share = trace.positions.shape[-1], self.some.scale
        return after - before < 30.0 + _ERROR * dim + _CHANCE * (share * dim) ** 0.5

    @override
    def new_squares(self, trace: Trace) -> Tensor:
        # Successive gradients differ by noise only, also during the warm-up; parameters without
        # noise have a prior.
        noise = trace.gradients.diff(dim=0).square().mean(0) / 2
        return noise + self.posterior.prior.gradient(torch.ones_like(noise))

    @override
    def adapt(self, trace: Trace, done: int) -> None:
        before = self.scale
        super().adapt(trace, done)
        ratio = self.scale / before  # the kernel's noise estimates are in units of the scale
        velocity, passing, variance, square, last = self.state.tensors
        memory = (velocity, passing, variance * ratio**2, square * ratio**2, last * ratio)
        self.state = self.state._replace(tensors=memory)
