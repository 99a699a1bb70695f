"""The warm-up: chains that walk to the typical set and feel for curvature and noise on their way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from langevin.drifts import Memory
from langevin.engines import take_step
from langevin.gradients import GradientFn
from langevin.kernels import Hamiltonian, KernelState, StepInputs
from langevin.noise import Purpose, normal, streams
from langevin.preconditioners import Preconditioner
from langevin.schedules import constant
from langevin.targets import Evaluation

__all__ = ["AFTER_WARMUP", "FIRST_STEP", "Measured", "Root", "Walk", "identity_root", "metric_root", "unit"]

AFTER_WARMUP = 2**40 + 2**39  # where a search begins that comes after a warm-up
FIRST_STEP = 2**40  # the warm-up's addresses begin where no run gets to
_BETA, _CALM = 0.9, 0.1  # the walk is SGHMC with step _CALM / curvature, where its own error is 3 percent
_MIX = 0.3  # share of the newest product in the averaged power iteration


class Measured(NamedTuple):
    """What a stretch of the walk saw."""

    squares: Tensor  # mean of the squared gradients, (chains, dim)
    quotients: Tensor  # curvature along the direction at each step, (steps, chains), float64


class Root(NamedTuple):
    """A root R of the metric G = R R^T at the chains' positions: theta = R y makes the sampler's metric the identity."""

    apply: Callable[[Tensor], Tensor]  # R y
    transposed: Callable[[Tensor], Tensor]  # R^T g


def identity_root(position: Tensor) -> Root:
    """Return the root of the identity."""
    return Root(lambda y: y, lambda g: g)


def metric_root(preconditioner: Preconditioner, memory: Memory, position: Tensor) -> Root:
    """Return the root of a preconditioner's metric at `position`."""
    metric = preconditioner.metric(memory, position)

    def transposed(gradient: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda y: preconditioner.spread(metric, y), torch.zeros_like(gradient))[1]
        return pull(gradient)[0]

    return Root(lambda y: preconditioner.spread(metric, y), transposed)


class Walk:
    """Chains on their way to the typical set, each with a direction that turns towards its largest curvature."""

    def __init__(
        self, gradient_fn: GradientFn, position: Tensor, temperature: float, chains: range, seed: int, first_step: int
    ) -> None:
        """Stand still at `position`."""
        self.gradient_fn, self.position, self.temperature = gradient_fn, position, temperature
        self.chains, self.seed, self.step = chains, seed, first_step
        self.kernel = Hamiltonian("warm-up", constant(1.0), temperature, _BETA)
        self.velocity = torch.zeros_like(position)
        self.direction = unit(self._normal(Purpose.INIT))
        self.is_exact = not gradient_fn.draw(range(first_step, first_step + 1))
        self._check_start()
        one = position.new_ones(len(position), 1)
        # Before anything is known: a displacement that rounding leaves alone, and a move as small.
        self.curvature, self.reach = one * 0.0, 100 * self._smallest()
        for _ in range(5):
            drawn = self.draw()
            self._turn(self.gradient_fn.evaluate(self.position, drawn).gradient, drawn, identity_root(position))
            self.step += 1
        self.caution, self.limit = one, one * math.inf
        self.here: Evaluation | None = None  # known for exact gradients, from the last move
        self.step_size = self._wanted()

    def draw(self) -> tuple[Tensor, ...]:
        """Return what is random in the gradient at this step."""
        return tuple(tensor[0] for tensor in self.gradient_fn.draw(range(self.step, self.step + 1)))

    def calm(self) -> None:
        """Keep the gradient's noise from heating the walk by more than a fifth from now on."""
        if not self.is_exact:
            gaps = self.gaps(8, identity_root(self.position))
            noise = torch.stack([(gap * self.direction).sum(-1, keepdim=True) ** 2 for gap in gaps]).mean(0)
            self.limit = 0.4 * (1 - _BETA) * self.temperature / noise.clamp(min=1e-30)

    def go(self, num_steps: int, root_fn: Callable[[Tensor], Root] = identity_root) -> Measured:
        """Take steps, turning the direction towards the largest curvature in the metric of `root_fn`."""
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
        """Take an SGHMC step; undo it where it climbs by more than heat explains, and be more careful there from then on."""
        before, self.step_size = self.step_size, torch.minimum(2 * self.step_size, self._wanted())
        velocity = self.velocity * (self.step_size / before) ** 0.5  # it is in units of the root of the step size
        kick = self._normal(Purpose.POSITION)
        inputs, known = StepInputs(self.step_size, self.temperature), Evaluation(energy, gradient)
        start = KernelState(self.position, (velocity,), self.step)
        state, _ = take_step(self.kernel, self.gradient_fn, start, drawn, kick[None], inputs, known)
        moved, (velocity,) = state.position, state.memory
        there = self.gradient_fn.evaluate(moved, drawn)
        dim = self.position.shape[-1]
        ceiling = energy + self.temperature * (dim + 10 * dim**0.5) + 1e-3 * energy.abs()
        is_good = torch.isfinite(there.gradient).all(-1) & (there.energy <= ceiling)
        good = is_good[:, None]
        if self.is_exact:
            self.here = Evaluation(torch.where(is_good, there.energy, energy), torch.where(good, there.gradient, gradient))
        self.position = torch.where(good, moved, self.position)
        self.velocity = torch.where(good, velocity, torch.zeros_like(velocity))
        self.caution = torch.where(good, (1.1 * self.caution).clamp(max=1.0), 0.5 * self.caution)

    def _wanted(self) -> Tensor:
        tiny = torch.finfo(self.position.dtype).tiny ** 0.5
        return torch.minimum(self.caution * _CALM / self.curvature.clamp(min=tiny), self.limit)

    def _turn(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: Root) -> Tensor:
        """Turn the direction by one product with the Hessian; return the curvature along it as it was, (chains,) in float64."""
        product, stiffness = self.product(gradient, drawn, root, self.direction)
        quotient = (self.direction * product).sum(-1).double()
        # The average of old and new keeps minibatch noise out and prefers positive curvature to negative.
        size = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
        turned = _MIX * product + (1 - _MIX) * size * self.direction
        self.direction = torch.where(size > 0, unit(turned), self.direction)
        decay = 0.95 if root.apply(self.direction) is self.direction else 1.0  # only a product in the plain metric sees all of H
        self.curvature = torch.maximum(stiffness, decay * self.curvature)
        return quotient

    def product(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: Root, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``R^T H R direction`` from gradients with the same draws, and |H d| for the unit vector d along R direction."""
        along = root.apply(direction)
        length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        smallest = self._smallest()
        width = (self.temperature / self.curvature.clamp(min=1e-30)) ** 0.5  # of the posterior, along the stiff direction
        reach = torch.where(self.curvature > 0, torch.maximum(0.05 * width, smallest), self.reach)
        there = self.position + reach * along / length
        reach = torch.linalg.vector_norm(there - self.position, dim=-1, keepdim=True)  # as rounded
        gap = self.gradient_fn.evaluate(there, drawn).gradient - gradient
        rounding = torch.finfo(gap.dtype).eps * gradient.abs().amax(-1, keepdim=True)
        resolved = torch.linalg.vector_norm(gap, dim=-1, keepdim=True) > 30 * rounding
        farthest = 0.1 * (1 + self.position.abs().amax(-1, keepdim=True))
        self.reach = torch.where(resolved, self.reach, torch.minimum(10 * self.reach, farthest))
        hessian_unit = torch.where(torch.isfinite(gap) & resolved, gap / reach, torch.zeros_like(gap))
        stiffness = torch.linalg.vector_norm(hessian_unit, dim=-1, keepdim=True)
        return root.transposed(hessian_unit * length), stiffness

    def _smallest(self) -> Tensor:
        """Return a displacement that rounding leaves alone."""
        is_double = self.position.dtype == torch.float64
        share = (1e3 if is_double else 30) * torch.finfo(self.position.dtype).eps
        return share * (1 + self.position.abs().amax(-1, keepdim=True))

    def gaps(self, num_pairs: int, root: Root) -> Iterator[Tensor]:
        """Yield differences of two gradients where the chains are, in the metric of `root`; their covariance is the noise's."""
        for _ in range(num_pairs):
            pair = []
            for _ in range(2):
                pair.append(self.gradient_fn.evaluate(self.position, self.draw()).gradient)
                self.step += 1
            yield root.transposed((pair[0] - pair[1]) * 0.5**0.5)

    def _normal(self, purpose: Purpose) -> Tensor:
        like = self.position
        at = streams(purpose, self.chains)
        return normal(self.seed, at, self.step, like.shape[-1], dtype=like.dtype, device=like.device)

    def _check_start(self) -> None:
        energy, gradient = self.gradient_fn.evaluate(self.position, self.draw())
        bad = ~(torch.isfinite(gradient).all(-1) & torch.isfinite(energy))
        if bad.any():
            chain = self.chains[int(bad.nonzero()[0])]
            raise ValueError(
                f"find_step_size() found a non-finite energy or gradient where chain {chain} starts: "
                "start where the energy is finite, or give step_size as a number"
            )


def unit(vector: Tensor) -> Tensor:
    """Return the vector over its length, along the last axis."""
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp(min=torch.finfo(vector.dtype).tiny)
