"""The step size for a wanted accuracy: a short warm-up measures curvature and gradient noise, the kernel's own update does the rest.

A step size is judged by the law it leads to. Along one direction a sampler with frozen square averages is a linear recursion
``z' = A z + noise``, z = (theta, whatever is remembered). A and the noise are read off `kernel.update` by feeding it unit vectors, the
stationary variance is the solution of ``S = A S A^T + B``, and the step is the largest below which S stays within `share` of the
variance that the sampler has for small steps and exact gradients. No formula of any sampler is repeated here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from langevin.checks import check_integer, check_number, check_position, needs
from langevin.drifts import Memory
from langevin.gradients import GradientFn
from langevin.kernels import Hamiltonian, Kernel
from langevin.noise import Purpose, normal, streams
from langevin.preconditioners import Identity, Preconditioner

__all__ = ["Tuning", "find_step_size", "stationary_error"]

FIRST_STEP = 2**40  # the warm-up's addresses begin where no run gets to
_TRAVEL, _SETTLE, _MEASURE, _FORGET = 150, 100, 100, 30  # steps of the three stretches; the first _FORGET quotients are dropped
_PAIRS = 128  # pairs of gradients whose differences give the noise; a half finds the noisiest direction, a half measures it
_BETA, _CALM = 0.9, 0.1  # the walk is SGHMC with step _CALM / curvature, where its own error is 3 percent
_MIX = 0.3  # share of the newest product in the averaged power iteration
_CHANCE = 4.0  # standard errors that a chain must stand out by to count as worse than the mean of the chains


@dataclass(frozen=True)
class Tuning:
    """A step size and the measurements behind it."""

    step_size: float
    text: str  # what was chosen and why, in two lines
    curvature: float  # the largest curvature of U, in the metric of the sampler
    noise: float  # variance of the gradient's noise along that direction, in the same metric
    noisiest: tuple[float, float]  # curvature and noise variance along the direction where the gradient is noisiest
    error: float  # predicted relative error of the stationary variance in the worst direction, with its sign
    discretisation: float  # the part of it that exact gradients would leave


class _Direction(NamedTuple):
    """What is known of U along one direction; float64, one number for all chains."""

    curvature: float
    noise: float


def find_step_size(
    kernel: Kernel,
    gradient_fn: GradientFn,
    position: Tensor,
    *,
    chains: range,
    seed: int,
    share: float = 0.05,
    steps_per_epoch: float | None = None,
) -> Tuning:
    """Find the largest step size whose law is off by at most `share` of the posterior variance, in the worst direction.

    The warm-up is a pure function of its arguments, with noise at addresses (step 2**40 and up) that no run uses. Chains walk from
    `position` towards the typical set (SGHMC, its step set by the curvature met on the way, moves that climb undone and halved);
    power iteration on differences of gradients with the same draws, fresh ones for each product, gives the largest curvature
    along the way; differences of gradients at one place give the noise. About 1300 gradients are taken in all.

    Assumed: U is close to a quadratic over the width of the posterior in its stiffest direction; the noise of the gradient does not
    depend on the position there; square averages (asgld, psgld) stand still at the mean squares that the walk saw. For sgrld and
    psgld curvature and noise are those in the metric. The error is that of the discretisation and of the gradient's noise, not
    that of chains too short: a soft direction may need many steps of this size. Steps are compared with the law of small steps, which
    for the published msgld and asgld is colder than the target (`kernel.describe()`).

    Args:
        kernel: the sampler; its own step size is not looked at.
        gradient_fn: the gradient, as the run will see it.
        position: starting positions, (chains, dim).
        chains: numbers of the chains.
        seed: an int in [0, 2**64).
        share: the error allowed, relative to the variance; in (0, 1).
        steps_per_epoch: N / n where minibatches come without replacement, as `gradients.minibatch` draws them: their noise cancels
            over an epoch, which allows far larger steps. None takes the noise of different steps as independent.

    Returns:
        The step size and why. With several chains it serves the worst of them; a chain counts as worse than the mean only by more than
        chance explains.

    Example:
        >>> from langevin.gradients import full
        >>> from langevin.samplers import sgld
        >>> from langevin.targets import gaussian
        >>> target = gaussian([[1.0, 0.9], [0.9, 1.0]])  # curvatures 10 and 0.53
        >>> found = find_step_size(sgld(step_size=1.0), full(target), torch.ones(1, 2), chains=range(1), seed=0)
        >>> round(found.curvature, 3), round(found.step_size, 5)  # 2 * 0.05 / (1.05 * 10)
        (10.0, 0.00952)
    """
    share = check_number("find_step_size", "share", share, "0 < share < 1", lambda v: 0 < v < 1)
    check_position("find_step_size", "position", position)
    if position.ndim != 2 or len(position) != len(chains):
        raise needs("find_step_size", "position", f"shape ({len(chains)}, dim), a row per chain", tuple(position.shape))
    if kernel.temperature == 0:
        raise needs("find_step_size", "kernel", "temperature > 0: without noise there is no law whose error could be bounded", 0.0)
    if steps_per_epoch is not None:
        check_number("find_step_size", "steps_per_epoch", steps_per_epoch, ">= 1", lambda v: v >= 1)
    check_integer("find_step_size", "seed", seed, 0)
    flat, preconditioner = _without_metric(kernel)
    with torch.no_grad():
        walk = _Walk(gradient_fn, position.detach(), kernel.temperature, chains, seed)
        walk.go(_TRAVEL)
        walk.calm()
        squares = walk.go(_SETTLE).squares
        metric_memory = _frozen(lambda memory, g: preconditioner.update(memory, g, 1.0), preconditioner.memory, squares)
        measured = walk.go(_MEASURE, lambda at: _root(preconditioner, metric_memory, at))
        stiff, noisiest = _directions(walk, measured, lambda at: _root(preconditioner, metric_memory, at), steps_per_epoch)

        def probe(step_size: float) -> _Law:
            return _Law.of(flat, step_size, walk.direction.double(), squares.double())

        return _choose(kernel, probe, (stiff, noisiest), share, steps_per_epoch, len(chains))


def stationary_error(
    kernel: Kernel, step_size: float, *, curvature: float, noise: float = 0.0, steps_per_epoch: float | None = None
) -> float:
    """Return the relative error of the stationary variance in one dimension, against small steps and exact gradients.

    Only for samplers without square averages. Infinite where the step is unstable.

    Args:
        kernel: the sampler; its own step size is not looked at.
        step_size: epsilon.
        curvature: of U.
        noise: variance of the gradient.
        steps_per_epoch: see `find_step_size`.

    Example:
        >>> from langevin.samplers import sgld
        >>> round(stationary_error(sgld(step_size=1.0), 0.1, curvature=1.0), 4)  # 1 / (1 - 0.1 / 2) - 1
        0.0526
    """
    flat, _ = _without_metric(kernel)
    one = torch.ones(1, 1, dtype=torch.float64)

    def probe(at: float) -> _Law:
        return _Law.of(flat, at, one, one)

    reference = _reference(kernel, probe, curvature)
    return float(_error(probe(step_size), reference, _Direction(curvature, noise), steps_per_epoch)[0])


# The walk


class _Measured(NamedTuple):
    """What a stretch of the walk saw."""

    squares: Tensor  # mean of the squared gradients, (chains, dim)
    quotients: Tensor  # curvature along the direction at each step, (steps, chains), float64


class _Root(NamedTuple):
    """A root R of the metric G = R R^T at the chains' positions: theta = R y makes the sampler's metric the identity."""

    apply: Callable[[Tensor], Tensor]  # R y
    transposed: Callable[[Tensor], Tensor]  # R^T g


def _identity(position: Tensor) -> _Root:
    return _Root(lambda y: y, lambda g: g)


def _root(preconditioner: Preconditioner, memory: Memory, position: Tensor) -> _Root:
    metric = preconditioner.metric(memory, position)

    def transposed(gradient: Tensor) -> Tensor:
        _, pull = torch.func.vjp(lambda y: preconditioner.spread(metric, y), torch.zeros_like(gradient))
        return pull(gradient)[0]

    return _Root(lambda y: preconditioner.spread(metric, y), transposed)


class _Walk:
    """Chains on their way to the typical set, each with a direction that turns towards its largest curvature."""

    def __init__(self, gradient_fn: GradientFn, position: Tensor, temperature: float, chains: range, seed: int) -> None:
        """Stand still at `position`."""
        self.gradient_fn, self.position, self.temperature = gradient_fn, position, temperature
        self.chains, self.seed, self.step = chains, seed, FIRST_STEP
        self.kernel = Hamiltonian("warm-up", 1.0, temperature, _BETA)
        self.velocity = torch.zeros_like(position)
        self.direction = _unit(self._normal(Purpose.INIT))
        self.is_exact = not gradient_fn.draw(range(FIRST_STEP, FIRST_STEP + 1))
        self._check_start()
        one = position.new_ones(len(position), 1)
        # Before anything is known: a displacement that rounding leaves alone, and a move as small.
        self.curvature = one * 0.0
        for _ in range(5):
            drawn = self.draw()
            self._turn(self.gradient_fn.evaluate(self.position, drawn).gradient, drawn, _identity(position))
            self.step += 1
        self.caution, self.limit = one, one * math.inf
        self.step_size = self._wanted()

    def draw(self) -> tuple[Tensor, ...]:
        """Return what is random in the gradient at this step."""
        return tuple(tensor[0] for tensor in self.gradient_fn.draw(range(self.step, self.step + 1)))

    def calm(self) -> None:
        """Keep the gradient's noise from heating the walk by more than a fifth from now on."""
        if not self.is_exact:
            noise = self.noise(8, [self.direction]).along[0].mean(0)
            self.limit = (0.4 * (1 - _BETA) * self.temperature / noise.clamp(min=1e-30)).to(self.position)[:, None]

    def go(self, num_steps: int, root_fn: Callable[[Tensor], _Root] = _identity) -> _Measured:
        """Take steps, turning the direction towards the largest curvature in the metric of `root_fn`."""
        squares, quotients = torch.zeros_like(self.position), []
        for _ in range(num_steps):
            drawn = self.draw()
            energy, gradient = self.gradient_fn.evaluate(self.position, drawn)
            quotients.append(self._turn(gradient, drawn, root_fn(self.position)))
            squares += gradient * gradient / num_steps
            self._move(energy, gradient, drawn)
            self.step += 1
        return _Measured(squares, torch.stack(quotients))

    def _move(self, energy: Tensor, gradient: Tensor, drawn: tuple[Tensor, ...]) -> None:
        """Take an SGHMC step; undo it where it climbs by more than heat explains, and be more careful there from then on."""
        before, self.step_size = self.step_size, torch.minimum(2 * self.step_size, self._wanted())
        velocity = self.velocity * (self.step_size / before) ** 0.5  # it is in units of the root of the step size
        kick = self._normal(Purpose.POSITION)
        moved, (velocity,) = self.kernel.update(self.position, gradient, kick, (velocity,), self.step_size, 1.0)  # type: ignore[arg-type]
        there = self.gradient_fn.evaluate(moved, drawn)
        dim = self.position.shape[-1]
        ceiling = energy + self.temperature * (dim + 10 * dim**0.5) + 1e-3 * energy.abs()
        good = torch.isfinite(there.gradient).all(-1) & (there.energy <= ceiling)
        good = good[:, None]
        self.position = torch.where(good, moved, self.position)
        self.velocity = torch.where(good, velocity, torch.zeros_like(velocity))
        self.caution = torch.where(good, (1.1 * self.caution).clamp(max=1.0), 0.5 * self.caution)

    def _wanted(self) -> Tensor:
        tiny = torch.finfo(self.position.dtype).tiny ** 0.5
        return torch.minimum(self.caution * _CALM / self.curvature.clamp(min=tiny), self.limit)

    def _turn(self, gradient: Tensor, drawn: tuple[Tensor, ...], root: _Root) -> Tensor:
        """Turn the direction by one product with the Hessian; return the curvature along it as it was, (chains,) in float64."""
        product, stiffness = self.product(gradient, drawn, root, self.direction)
        quotient = (self.direction * product).sum(-1).double()
        # The average of old and new keeps minibatch noise out and prefers positive curvature to negative.
        size = torch.linalg.vector_norm(product, dim=-1, keepdim=True)
        turned = _MIX * product + (1 - _MIX) * size * self.direction
        self.direction = torch.where(size > 0, _unit(turned), self.direction)
        decay = 0.95 if root.apply(self.direction) is self.direction else 1.0  # only a product in the plain metric sees all of H
        self.curvature = torch.maximum(stiffness, decay * self.curvature)
        return quotient

    def product(
        self, gradient: Tensor, drawn: tuple[Tensor, ...], root: _Root, direction: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``R^T H R direction`` from a difference of gradients with the same draws, and |H d| for the unit vector d along R."""
        along = root.apply(direction)
        length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        precision = torch.finfo(self.position.dtype).eps
        floor = (1e3 if self.position.dtype == torch.float64 else 30) * precision
        smallest = floor * (1 + self.position.abs().amax(-1, keepdim=True))
        width = (self.temperature / self.curvature.clamp(min=1e-30)) ** 0.5  # of the posterior, along the stiff direction
        reach = torch.where(self.curvature > 0, torch.maximum(0.05 * width, smallest), 100 * smallest)
        there = self.position + reach * along / length
        reach = torch.linalg.vector_norm(there - self.position, dim=-1, keepdim=True)  # as rounded
        gap = self.gradient_fn.evaluate(there, drawn).gradient - gradient
        resolved = torch.linalg.vector_norm(gap, dim=-1, keepdim=True) > 30 * precision * gradient.abs().amax(-1, keepdim=True)
        hessian_unit = torch.where(torch.isfinite(gap) & resolved, gap / reach, torch.zeros_like(gap))
        stiffness = torch.linalg.vector_norm(hessian_unit, dim=-1, keepdim=True)
        return root.transposed(hessian_unit * length), stiffness

    def noise(self, num_pairs: int, directions: list[Tensor], root: _Root | None = None, seek: bool = False) -> _Noise:
        """Measure the gradient's noise where the chains are, in the metric of `root`, from differences of pairs of draws."""
        root = root or _identity(self.position)
        noisiest = torch.zeros_like(self.position)
        rows = []
        for _ in range(num_pairs):
            first = self.gradient_fn.evaluate(self.position, self.draw()).gradient
            self.step += 1
            second = self.gradient_fn.evaluate(self.position, self.draw()).gradient
            self.step += 1
            gap = root.transposed((first - second) * 0.5**0.5)
            rows.append(torch.stack([(gap * direction).sum(-1).double() ** 2 for direction in directions]))
            if seek:  # Oja: a running top eigenvector of the gaps' second moment
                pull = (gap * noisiest).sum(-1, keepdim=True)
                weight = torch.where(pull == 0, torch.ones_like(pull), pull)
                size = torch.linalg.vector_norm(gap, dim=-1, keepdim=True).clamp(min=1e-30)
                noisiest = _unit(noisiest + gap * weight / (size * size.clamp(min=1.0)) if not noisiest.any() else _oja(noisiest, gap, pull))
        return _Noise(torch.stack(rows, 1), noisiest)

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
