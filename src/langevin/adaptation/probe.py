"""Probe the target: short SGHMC chains that measure curvature and gradient noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.execution import take_step
from langevin.kernels import Hamiltonian, KernelState, StepInputs
from langevin.kernels.drifts import Tensors
from langevin.kernels.preconditioners import Preconditioner
from langevin.kernels.schedules import constant
from langevin.random import Purpose, normal, streams
from langevin.targets import Evaluation
from langevin.targets.gradients import GradientFn

__all__ = [
    "AFTER_WARMUP",
    "FIRST_STEP",
    "Measured",
    "Root",
    "Walk",
    "identity_root",
    "metric_root",
    "unit",
]

AFTER_WARMUP = 2**40 + 2**39  # first step of a search after a warm-up
FIRST_STEP = 2**40  # first step of a warm-up: no run reaches it
_BETA, _CALM = 0.9, 0.1  # SGHMC with step _CALM / curvature, whose own error is 3 percent
_MIX = 0.3  # weight of the newest product in the averaged power iteration


class Measured(NamedTuple):
    """The measurements of one segment."""

    squares: Tensor  # mean of the squared gradients, (chains, dim)
    quotients: Tensor  # curvature along the direction at each step, (steps, chains), float64


class Root(NamedTuple):
    """A root R of the metric G = R R^T: in y, theta = R y, the sampler's metric is the identity."""

    apply: Callable[[Tensor], Tensor]  # R y
    transposed: Callable[[Tensor], Tensor]  # R^T g


def identity_root(position: Tensor) -> Root:
    """Return the root of the identity."""
    return Root(lambda y: y, lambda g: g)


def metric_root(preconditioner: Preconditioner, memory: Tensors, position: Tensor) -> Root:
    """Return the root of a preconditioner's metric at `position`."""
    metric = preconditioner.metric(memory, position)

    def transposed(gradient: Tensor) -> Tensor:
        zeros = torch.zeros_like(gradient)
        pull = torch.func.vjp(lambda y: preconditioner.spread(metric, y), zeros)[1]
        return pull(gradient)[0]

    return Root(lambda y: preconditioner.spread(metric, y), transposed)


class Walk:
    """Chains that move to the typical set; each tracks its direction of largest curvature."""

    def __init__(
        self,
        gradient_fn: GradientFn,
        position: Tensor,
        temperature: float,
        chains: range,
        seed: int,
        first_step: int,
    ) -> None:
        """Start at rest at `position`."""
        self.gradient_fn, self.position, self.temperature = gradient_fn, position, temperature
        self.chains, self.seed, self.step = chains, seed, first_step
        self.kernel = Hamiltonian("warm-up", constant(1.0), temperature, _BETA)
        self.velocity = torch.zeros_like(position)
        self.direction = unit(self._normal(Purpose.INIT))
        self.is_exact = not gradient_fn.draw(range(first_step, first_step + 1))
        self._check_start()
        one = position.new_ones(len(position), 1)
        # The first displacements are just above rounding.
        self.curvature, self.reach = one * 0.0, 100 * self._smallest()
        for _ in range(5):
            drawn = self.draw()
            gradient = self.gradient_fn.evaluate(self.position, drawn).gradient
            self._turn(gradient, drawn, identity_root(position))
            self.step += 1
        self.caution, self.limit = one, one * math.inf
        self.here: Evaluation | None = None  # known for exact gradients, from the last move
        self.step_size = self._wanted()

    def draw(self) -> tuple[Tensor, ...]:
        """Draw the minibatches of this step."""
        return tuple(tensor[0] for tensor in self.gradient_fn.draw(range(self.step, self.step + 1)))

    def calm(self) -> None:
        """Limit the excess temperature from gradient noise to a fifth from now on."""
        if not self.is_exact:
            gaps = self.gaps(8, identity_root(self.position))
            squares = [(gap * self.direction).sum(-1, keepdim=True) ** 2 for gap in gaps]
            noise = torch.stack(squares).mean(0)
            self.limit = 0.4 * (1 - _BETA) * self.temperature / noise.clamp(min=1e-30)

    def go(self, num_steps: int, root_fn: Callable[[Tensor], Root] = identity_root) -> Measured:
        """Take steps; turn the direction to the largest curvature in the metric of `root_fn`."""
        squares, quotients = torch.zeros_like(self.position), []
        for _ in range(num_steps):
            drawn = self.draw()
            energy, gradient = self.here or self.gradient_fn.evaluate(self.position, drawn)
            quotients.append(self._turn(gradient, drawn, root_fn(self.position)))
            squares += gradient * gradient / num_steps
            self._move(energy, gradient, drawn)
            self.step += 1
        return Measured(squares, torch.stack(quotients))

    def _move(self, energy: Tensor, gradient: Tensor, drawn: tuple[Tensor, ...]) -> None:
        """Take an SGHMC step; if the energy rises too far, reject it and shrink the step size."""
        before, self.step_size = self.step_size, torch.minimum(2 * self.step_size, self._wanted())
        # The unit of velocities is sqrt(step size).
        velocity = self.velocity * (self.step_size / before) ** 0.5
        kick = self._normal(Purpose.POSITION)
        inputs, known = StepInputs(self.step_size, self.temperature), Evaluation(energy, gradient)
        start = KernelState(self.position, (velocity,), self.step)
        state, _ = take_step(self.kernel, self.gradient_fn, start, drawn, kick[None], inputs, known)
        moved, (velocity,) = state.position, state.tensors
        there = self.gradient_fn.evaluate(moved, drawn)
        dim = self.position.shape[-1]
        ceiling = energy + self.temperature * (dim + 10 * dim**0.5) + 1e-3 * energy.abs()
        is_good = torch.isfinite(there.gradient).all(-1) & (there.energy <= ceiling)
        good = is_good[:, None]
        if self.is_exact:
            self.here = Evaluation(
                torch.where(is_good, there.energy, energy),
                torch.where(good, there.gradient, gradient),
            )
        self.position = torch.where(good, moved, self.position)
        self.velocity = torch.where(good, velocity, torch.zeros_like(velocity))
        self.caution = torch.where(good, (1.1 * self.caution).clamp(max=1.0), 0.5 * self.caution)

    def _wanted(self) -> Tensor:
        tiny = torch.finfo(self.position.dtype).tiny ** 0.5
        return torch.minimum(self.caution * _CALM / self.curvature.clamp(min=tiny), self.limit)

    def _turn(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: Root) -> Tensor:
        """Turn the direction by a product with the Hessian; return the curvature before."""
        product, stiffness = self.product(gradient, drawn, root, self.direction)
        quotient = (self.direction * product).sum(-1).double()
        # Averaging reduces minibatch noise, and prefers positive curvature to negative.
        size = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
        turned = _MIX * product + (1 - _MIX) * size * self.direction
        self.direction = torch.where(size > 0, unit(turned), self.direction)
        # Only a product with the identity as the metric depends on all of H.
        decay = 0.95 if root.apply(self.direction) is self.direction else 1.0
        self.curvature = torch.maximum(stiffness, decay * self.curvature)
        return quotient

    def product(
        self, gradient: Tensor, drawn: tuple[Tensor, ...], root: Root, direction: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``R^T H R direction``, and |H d| for the unit vector d along ``R direction``.

        Products are differences of gradients with the same minibatch.
        """
        along = root.apply(direction)
        length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        smallest = self._smallest()
        # The width of the posterior along the stiff direction.
        width = (self.temperature / self.curvature.clamp(min=1e-30)) ** 0.5
        reach = torch.where(self.curvature > 0, torch.maximum(0.05 * width, smallest), self.reach)
        there = self.position + reach * along / length
        reach = torch.linalg.vector_norm(there - self.position, dim=-1, keepdim=True)  # as rounded
        gap = self.gradient_fn.evaluate(there, drawn).gradient - gradient
        rounding = torch.finfo(gap.dtype).eps * gradient.abs().amax(-1, keepdim=True)
        resolved = torch.linalg.vector_norm(gap, dim=-1, keepdim=True) > 30 * rounding
        farthest = 0.1 * (1 + self.position.abs().amax(-1, keepdim=True))
        self.reach = torch.where(resolved, self.reach, torch.minimum(10 * self.reach, farthest))
        is_known = torch.isfinite(gap) & resolved
        product = torch.where(is_known, gap / reach, torch.zeros_like(gap))
        stiffness = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
        return root.transposed(product * length), stiffness

    def _smallest(self) -> Tensor:
        """Return the smallest displacement above rounding."""
        is_double = self.position.dtype == torch.float64
        share = (1e3 if is_double else 30) * torch.finfo(self.position.dtype).eps
        return share * (1 + self.position.abs().amax(-1, keepdim=True))

    def gaps(self, num_pairs: int, root: Root) -> Iterator[Tensor]:
        """Yield scaled differences of two gradients, whose covariance is the gradient noise."""
        for _ in range(num_pairs):
            pair = []
            for _ in range(2):
                pair.append(self.gradient_fn.evaluate(self.position, self.draw()).gradient)
                self.step += 1
            yield root.transposed((pair[0] - pair[1]) * 0.5**0.5)

    def _normal(self, purpose: Purpose) -> Tensor:
        like = self.position
        at = streams(purpose, self.chains)
        size, dtype = like.shape[-1], like.dtype
        return normal(self.seed, at, self.step, size, dtype=dtype, device=like.device)

    def _check_start(self) -> None:
        energy, gradient = self.gradient_fn.evaluate(self.position, self.draw())
        bad = ~(torch.isfinite(gradient).all(-1) & torch.isfinite(energy))
        if bad.any():
            chain = self.chains[int(bad.nonzero()[0])]
            raise ValueError(
                f"find_step_size() found a non-finite energy or gradient where chain {chain} "
                "starts: start where the energy is finite, or give step_size as a number"
            )


def unit(vector: Tensor) -> Tensor:
    """Return the vector over its length, along the last axis."""
    length = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return vector / length.clamp(min=torch.finfo(vector.dtype).tiny)
